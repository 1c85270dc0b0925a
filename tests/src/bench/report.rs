//! What a row came to, and the table.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a row should come to.
pub enum Aim {
    /// As much as this, of this unit.
    AtLeast(f64, &'static str),
    /// No more than this, of this unit.
    AtMost(f64, &'static str),
    /// No more than this many seconds, and what the row itself checks besides.
    Within(f64, &'static str),
    /// Nothing: the row shows, and whoever reads it judges.
    Shown(&'static str),
}

impl Aim {
    fn text(&self) -> String {
        match self {
            Self::AtLeast(value, unit) => format!("≥ {} {unit}", number(*value)),
            Self::AtMost(value, unit) => format!("≤ {} {unit}", number(*value)),
            Self::Within(value, rest) => format!("closed within {} s, {rest}", number(*value)),
            Self::Shown(what) => (*what).to_owned(),
        }
    }

    /// Whether it is met, in a word.
    fn met(&self, measured: &Measured) -> &'static str {
        let met = match self {
            Self::AtLeast(aim, _) => measured.value >= *aim,
            Self::AtMost(aim, _) | Self::Within(aim, _) => measured.value <= *aim,
            Self::Shown(_) => return "-",
        };
        if met && measured.besides { "yes" } else { "no" }
    }
}

/// Two decimals below ten, else none.
pub fn number(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// What a row came to.
pub struct Measured {
    /// In the unit of the aim.
    pub value: f64,
    /// Whether what the aim says besides its number holds.
    pub besides: bool,
    /// Ratios, in words.
    pub ratio: String,
    /// What the ratios are made of.
    pub absolute: String,
}

/// Why a row has no figure.
#[derive(Debug)]
pub enum Fault {
    /// It cannot be measured here.
    NotRun(String),
    /// It was measured and something was wrong.
    Failed(String),
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs a row; a panic of the test tools is its failure, not the end of the table.
pub fn caught<T>(run: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        Err(Fault::Failed(text.split_whitespace().collect::<Vec<_>>().join(" ")))
    })
}

/// A line of the table.
pub struct Line {
    cells: Result<[String; 5], String>,
    failed: bool,
}

impl Line {
    /// What a row came to, also on standard error at once.
    #[must_use]
    pub fn new(id: &str, measure: &str, aim: &Aim, outcome: Result<Measured, Fault>) -> Self {
        match outcome {
            Ok(measured) => {
                let met = aim.met(&measured).to_owned();
                let cells = [measure.to_owned(), measured.ratio, measured.absolute, aim.text(), met];
                eprintln!("  {}; {}", cells[1], cells[2]);
                Self { cells: Ok(cells), failed: false }
            }
            Err(fault) => {
                let failed = matches!(fault, Fault::Failed(_));
                let text = match fault {
                    Fault::NotRun(why) => format!("NOT RUN: {id} ({measure}): {why}"),
                    Fault::Failed(why) => format!("FAILED: {id} ({measure}): {why}"),
                };
                eprintln!("  {text}");
                Self { cells: Err(text), failed }
            }
        }
    }

    /// Whether something was wrong.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failed
    }
}

/// Prints the table as Markdown, then the rows that have no figure.
pub fn table(lines: &[Line]) {
    println!(
        "| measure | ratio | absolute: median (least to most) | aim | met |\n| --- | --- | --- | --- | --- |"
    );
    for cells in lines.iter().filter_map(|line| line.cells.as_ref().ok()) {
        println!("| {} |", cells.join(" | "));
    }
    println!();
    for text in lines.iter().filter_map(|line| line.cells.as_ref().err()) {
        println!("{text}");
    }
}

/// Says on what machine and how, and whether anything else is running on it.
pub fn machine(rounds: &str) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(": ").map_or("?", |(_, value)| value).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let sha = if field("flags").split(' ').any(|flag| flag == "sha_ni") { "SHA-NI" } else { "no SHA-NI" };
    let kernel = read("/proc/sys/kernel/osrelease");
    println!("{cores} cores, {}, {sha}, Linux {}", field("model name"), kernel.trim());
    println!("{rounds}");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().and_then(|load| load.parse::<f64>().ok()).unwrap_or_default();
    if load > 0.5 {
        println!("WARNING: load average {load}: something else is running; these figures say little");
    }
    println!();
}
