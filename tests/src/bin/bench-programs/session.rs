//! A session whose tool does what a row says, and how long that takes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::a2a;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;

/// A driver must have a gateway; nothing here uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

/// A capsule that runs programs, and its session.
pub(crate) struct Bench {
    session: Session,
    _capsule: Capsule,
}

impl Bench {
    /// A session of class `sealed`.
    pub(crate) fn start() -> Self {
        let capsule = Capsule::driven_by(
            "spin-driver",
            NO_GATEWAY,
            &["process-tool"],
            "shell: {allow: [\"true\", cat, perl]}, containment: sealed",
        );
        let session = Launch::of(&capsule).start();
        Bench { session, _capsule: capsule }
    }

    /// Has the tool go through steps, each of which must come out well; how long the task took, and what came of the steps.
    pub(crate) fn perform(&self, steps: &Value) -> (Duration, Vec<Value>) {
        let task = format!("tool process-tool {}", json!({ "steps": steps }));
        let begin = Instant::now();
        let done = a2a::complete(self.session.url(), "m", &task);
        let took = begin.elapsed();
        let told = a2a::answer(&done);
        let inner =
            told.split_once('\n').and_then(|(_, rest)| rest.rsplit_once('\n')).map(|(inner, _)| inner);
        let answer: Value = inner
            .and_then(|inner| serde_json::from_str(inner).ok())
            .unwrap_or_else(|| panic!("no answer: {}", told.chars().take(300).collect::<String>()));
        let results = answer.get("steps").and_then(Value::as_array).cloned().unwrap_or_default();
        if let Some(wrong) = results.iter().find(|result| result.get("ok").is_none()) {
            panic!("a step failed: {wrong}");
        }
        (took, results)
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) {
        self.session.stop();
    }
}

/// As many steps of one kind.
pub(crate) fn repeated(step: &Value, count: usize) -> Value {
    Value::Array(vec![step.clone(); count])
}
