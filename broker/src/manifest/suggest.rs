//! Which known word was probably meant.

/// Longest word that is compared: nobody misspells a key into something longer.
const MAX_CHARS: usize = 64;

/// The nearest of `known`, if it is near enough: at most a third of the longer word's letters differ.
pub(crate) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let word: Vec<char> = word.chars().take(MAX_CHARS + 1).collect();
    if word.is_empty() || word.len() > MAX_CHARS {
        return None;
    }
    known
        .filter_map(|candidate| {
            let letters: Vec<char> = candidate.chars().collect();
            let limit = (word.len().max(letters.len()) / 3).max(1);
            let distance = distance(&word, &letters);
            (distance <= limit).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance in which swapping two neighbours counts as one edit.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut a_before = None;
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        let mut b_before = None;
        for (j, &y) in b.iter().enumerate() {
            let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX / 2);
            let mut best = at(&last, j) + usize::from(x != y);
            best = best.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            if a_before == Some(y) && b_before == Some(x) && j > 0 {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
            b_before = Some(y);
        }
        a_before = Some(x);
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}
