//! Medians, and how figures are written.

use super::report::number;

/// What one side came to in all rounds.
#[derive(Debug, Default, Clone)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// One more round.
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// The middle one, the upper of two.
    ///
    /// # Panics
    /// If there are none.
    pub fn median(&self) -> f64 {
        self.at(self.0.len() / 2)
    }

    /// The one that `hundredths` of all are below.
    ///
    /// # Panics
    /// If there are none.
    pub fn percentile(&self, hundredths: usize) -> f64 {
        self.at((self.0.len() * hundredths / 100).min(self.0.len().saturating_sub(1)))
    }

    /// The largest.
    ///
    /// # Panics
    /// If there are none.
    pub fn largest(&self) -> f64 {
        self.at(self.0.len().saturating_sub(1))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn at(&self, place: usize) -> f64 {
        *self.0.get(place).unwrap_or_else(|| panic!("no figures"))
    }

    /// `name 12 (11 to 13)`.
    pub fn text(&self, name: &str) -> String {
        format!("{name} {} ({} to {})", number(self.median()), number(self.at(0)), number(self.largest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_whatever_the_order() {
        let mut figures = Figures::default();
        for figure in [5.0, 1.0, 4.0, 2.0, 300.0] {
            figures.add(figure);
        }
        assert_eq!((figures.median(), figures.largest(), figures.count()), (4.0, 300.0, 5));
        assert_eq!(
            (figures.percentile(0), figures.percentile(99), figures.percentile(100)),
            (1.0, 300.0, 300.0)
        );
        assert_eq!(figures.text("ours"), "ours 4.00 (1.00 to 300)");
    }
}
