//! Which bytes of the body window are free, being filled, or with the door?
//!
//! Space is handed out first-fit in whole pages; a piece that a worker holds or that the door was lent is not in the free
//! list, so two answers never share a byte. Space comes back by the slot's number and by nothing else.

use std::collections::BTreeMap;

use ipc::sys::{Mapping, Piece};

/// Space is counted in pages: the door's reads of one slot never touch another one's cache lines.
const GRAIN: usize = 4096;

/// What becomes of bytes whose space comes back (`docs/decisions.md`, Slots of the peer plane).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// They stay until something else is written there.
    Stays,
    /// They are overwritten with zeros first.
    Wiped,
}

/// A piece the door holds or has just given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Lent {
    piece: Piece,
    leftover: Leftover,
}

impl Lent {
    /// Whether cleaning it takes time.
    pub(crate) fn is_wiped(&self) -> bool {
        self.leftover == Leftover::Wiped
    }

    /// The piece, wiped if it is to be.
    pub(crate) fn clean(self) -> Piece {
        clean(self.piece, self.leftover)
    }
}

/// A piece that is to be free again, wiped if it is to be.
pub(crate) fn clean(mut piece: Piece, leftover: Leftover) -> Piece {
    if leftover == Leftover::Wiped {
        piece.bytes_mut().fill(0);
    }
    piece
}

/// The window's bookkeeping.
#[derive(Debug)]
pub(crate) struct Window {
    /// Free pieces by offset, no two of them neighbours.
    free: BTreeMap<usize, Piece>,
    /// Pieces the door holds, by slot.
    lent: BTreeMap<u32, Lent>,
    /// The number the next slot gets.
    next: u32,
}

impl Window {
    /// All of a writable mapping, free; `None` if it is read-only.
    pub(crate) fn new(mapping: Mapping) -> Option<Self> {
        let whole = Piece::whole(mapping)?;
        Some(Window { free: BTreeMap::from([(0, whole)]), lent: BTreeMap::new(), next: 0 })
    }

    fn pages(bytes: usize) -> usize {
        bytes.max(1).div_ceil(GRAIN).saturating_mul(GRAIN)
    }

    /// Whether a piece of this size is free now.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.free.values().any(|piece| piece.len() >= Self::pages(bytes))
    }

    /// Takes the first free piece of at least this size.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Piece> {
        let size = Self::pages(bytes);
        let offset = *self.free.iter().find(|(_, piece)| piece.len() >= size)?.0;
        match self.free.remove(&offset)?.split_at(size) {
            Ok((piece, rest)) => {
                self.free.insert(rest.offset(), rest);
                Some(piece)
            }
            Err(whole) => Some(whole),
        }
    }

    /// Takes a piece back that was never lent.
    pub(crate) fn give(&mut self, mut piece: Piece) {
        let before = self.free.range(..piece.offset()).next_back().map(|(offset, _)| *offset);
        if let Some(before) = before.and_then(|offset| self.free.remove(&offset)) {
            piece = match before.join(piece) {
                Ok(joined) => joined,
                Err((before, piece)) => {
                    self.free.insert(before.offset(), before);
                    piece
                }
            };
        }
        let end = piece.offset() + piece.len();
        if let Some(after) = self.free.remove(&end) {
            piece = match piece.join(after) {
                Ok(joined) => joined,
                Err((piece, after)) => {
                    self.free.insert(after.offset(), after);
                    piece
                }
            };
        }
        self.free.insert(piece.offset(), piece);
    }

    /// Lends a filled piece to the door under a number it has not got.
    pub(crate) fn lend(&mut self, piece: Piece, leftover: Leftover) -> u32 {
        while self.lent.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let slot = self.next;
        self.next = self.next.wrapping_add(1);
        self.lent.insert(slot, Lent { piece, leftover });
        slot
    }

    /// Takes a slot back, to be cleaned and given; `None` if the door does not hold it.
    pub(crate) fn release(&mut self, slot: u32) -> Option<Lent> {
        self.lent.remove(&slot)
    }

    /// Takes every slot back: the door that held them is gone.
    pub(crate) fn reclaim(&mut self) {
        for lent in std::mem::take(&mut self.lent).into_values() {
            self.give(lent.clean());
        }
    }

    /// Free bytes, and the number of pieces they are in.
    #[cfg(test)]
    pub(crate) fn free_space(&self) -> (usize, usize) {
        (self.free.values().map(Piece::len).sum(), self.free.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipc::memory::{WINDOW_BYTES, map_window, window};

    fn fresh() -> Window {
        Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap()
    }

    #[test]
    fn space_given_back_in_any_order_becomes_one_piece_again() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut window = fresh();
            let mut pieces: Vec<_> = [1, 5000, 4096].map(|bytes| window.take(bytes)).into();
            let sizes: Vec<_> = pieces.iter().map(|piece| piece.as_ref().unwrap().len()).collect();
            assert_eq!(sizes, [4096, 8192, 4096]);
            for index in order {
                window.give(pieces[index].take().unwrap());
            }
            assert_eq!(window.free_space(), (WINDOW_BYTES, 1), "{order:?}");
        }
    }

    #[test]
    fn pieces_taken_at_one_time_never_overlap() {
        let mut window = fresh();
        let mut held: Vec<Piece> = Vec::new();
        let mut state = 7u64;
        for round in 0..20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if state >> 63 == 0
                && let Some(piece) = window.take((state >> 40) as usize % (3 * 1024 * 1024))
            {
                for other in &held {
                    let apart = piece.offset() + piece.len() <= other.offset()
                        || other.offset() + other.len() <= piece.offset();
                    assert!(apart, "round {round}");
                }
                held.push(piece);
            } else if !held.is_empty() {
                window.give(held.swap_remove((state >> 20) as usize % held.len()));
            }
        }
        held.into_iter().for_each(|piece| window.give(piece));
        assert_eq!(window.free_space(), (WINDOW_BYTES, 1));
    }

    #[test]
    fn a_slot_is_released_once_and_only_if_it_was_lent() {
        let mut window = fresh();
        assert!(window.release(0).is_none());
        let piece = window.take(10).unwrap();
        let slot = window.lend(piece, Leftover::Stays);
        assert!(window.release(slot + 1).is_none());
        let lent = window.release(slot).unwrap();
        assert!(window.release(slot).is_none(), "twice");
        window.give(lent.clean());
        assert_eq!(window.free_space(), (WINDOW_BYTES, 1));
    }

    #[test]
    fn a_full_window_hands_nothing_out_until_a_slot_comes_back() {
        let mut window = fresh();
        let slots: Vec<u32> = std::iter::from_fn(|| {
            let piece = window.take(WINDOW_BYTES / 4)?;
            Some(window.lend(piece, Leftover::Stays))
        })
        .collect();
        assert_eq!(slots.len(), 4);
        assert!(!window.fits(1) && window.take(1).is_none());
        let lent = window.release(slots[2]).unwrap();
        window.give(lent.clean());
        assert!(window.fits(WINDOW_BYTES / 4) && !window.fits(WINDOW_BYTES / 4 + 1));
        window.reclaim();
        assert_eq!(window.free_space(), (WINDOW_BYTES, 1));
    }
}
