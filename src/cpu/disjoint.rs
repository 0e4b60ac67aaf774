//! A slice that several threads write in places that do not overlap.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose disjoint ranges go to different parts of a [`super::Team::run`].
#[derive(Debug)]
pub struct Disjoint<'a, T> {
    start: *mut T,
    length: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is borrowed for 'a, and every access goes through `slice`, whose caller promises that ranges in use
// at one time do not overlap; so a `T` is touched by one thread at a time, which `T: Send` allows.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes the slice for as long as parts write it.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), owner: PhantomData }
    }

    /// Elements of the whole slice.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// When the range ends past the slice.
    ///
    /// # Safety
    /// While the result lives, no other call's result may overlap it.
    #[allow(clippy::mut_from_ref)] // That is what this type is for; the caller keeps ranges apart.
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {} elements", self.length);
        // SAFETY: the range lies in the slice borrowed in `new`; the caller keeps ranges in use apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
