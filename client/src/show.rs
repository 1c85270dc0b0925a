//! Text of strangers on a terminal, numbers for people, times.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Escapes what a terminal would act on and cuts at `most` characters.
pub(crate) fn safe(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == most {
            out.push('…');
            break;
        }
        // Marks that turn the direction of text around are as good as control characters.
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Bytes as people read them.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64 / 1024.0;
    if value < 1.0 {
        return format!("{count} B");
    }
    for unit in UNITS {
        if value < 1024.0 || unit == "PiB" {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{count} B")
}

/// Milliseconds as people read them.
pub(crate) fn duration(milliseconds: u64) -> String {
    match milliseconds {
        0..1_000 => format!("{milliseconds} ms"),
        1_000..60_000 => format!("{:.1} s", milliseconds as f64 / 1000.0),
        _ => format!("{} min {} s", milliseconds / 60_000, milliseconds / 1000 % 60),
    }
}

/// The clock of a timeline.
pub(crate) struct Clock {
    zone: TimeZone,
    /// The day of the last line.
    day: Option<jiff::civil::Date>,
}

impl Clock {
    /// Local time where people read it, else UTC.
    pub(crate) fn new(local: bool) -> Self {
        Clock { zone: if local { TimeZone::system() } else { TimeZone::UTC }, day: None }
    }

    /// A line that says the day where it is another than before, and the time of day. A time that is none stays blank.
    pub(crate) fn tell(&mut self, milliseconds: Option<u64>) -> (Option<String>, String) {
        let time = milliseconds
            .and_then(|milliseconds| i64::try_from(milliseconds).ok())
            .and_then(|milliseconds| Timestamp::from_millisecond(milliseconds).ok())
            .map(|time| time.to_zoned(self.zone.clone()));
        let Some(time) = time else { return (None, " ".repeat("00:00:00.000".len())) };
        let day = (self.day != Some(time.date())).then(|| time.strftime("%A, %Y-%m-%d (UTC%:z)").to_string());
        self.day = Some(time.date());
        (day, time.strftime("%H:%M:%S%.3f").to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_a_terminal_acts_on_gets_through() {
        let shown = safe("a\u{1b}[31mb\r\n\u{7}\u{9b}1m\u{202e}c\u{85}", 100);
        assert_eq!(shown, "a\\u{1b}[31mb\\r\\n\\u{7}\\u{9b}1m\\u{202e}c\\u{85}");
        assert_eq!(safe("äöü", 2), "äö…");
        assert_eq!(safe("äöü", 3), "äöü");
    }

    #[test]
    fn sizes_and_durations_are_readable() {
        let sizes = [0, 1023, 1024, 1536, 10 << 20, 3 << 30, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10.0 MiB", "3.0 GiB", "16384.0 PiB"]);
        let durations = [0, 999, 1_500, 61_000, 3_600_000].map(duration);
        assert_eq!(durations, ["0 ms", "999 ms", "1.5 s", "1 min 1 s", "60 min 0 s"]);
    }

    #[test]
    fn a_day_is_said_once() {
        let mut clock = Clock::new(false);
        let day = |said: (Option<String>, String)| said.0;
        assert_eq!(
            clock.tell(Some(1_796_132_963_494)),
            (Some("Tuesday, 2026-12-01 (UTC+00:00)".into()), "13:49:23.494".into())
        );
        assert_eq!(day(clock.tell(Some(1_796_132_963_495))), None);
        assert!(day(clock.tell(Some(1_796_132_963_495 + 86_400_000))).is_some());
        assert_eq!(clock.tell(None), (None, " ".repeat(12)));
        assert_eq!(day(clock.tell(Some(u64::MAX))), None, "no time of this calendar");
    }
}
