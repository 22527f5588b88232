//! The random numbers of the operating system, from a seed.
//!
//! A run of the simulation must depend on nothing but its seed. What is random in it by intention has a generator of its
//! own, but the standard library's hash maps, tokio's and futures' `select!` and the `rand` crate take their seeds from the
//! operating system, all of them by [`getrandom(2)`](https://man7.org/linux/man-pages/man2/getrandom.2.html). A program that
//! links this crate has another function of that name. Without [`seed`], it reads `/dev/urandom`.

use std::fs::File;
use std::io::Read;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

static GENERATOR: Mutex<Option<StdRng>> = Mutex::new(None);

/// Begins the numbers of a seed, for all threads. A thread that took random numbers before may remember them.
pub fn seed(seed: u64) {
    *GENERATOR.lock() = Some(StdRng::seed_from_u64(seed));
}

/// Fills a buffer. Returns its length, or -1.
fn fill(bytes: &mut [u8]) -> isize {
    let mut generator = GENERATOR.lock();
    match generator.as_mut() {
        Some(generator) => generator.fill_bytes(bytes),
        None => {
            let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
            if read.is_err() {
                return -1;
            }
        }
    }
    isize::try_from(bytes.len()).unwrap_or(-1)
}

/// Replaces the function of the C library.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes, as for the function that this one replaces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if buffer.is_null() || length == 0 {
        return 0;
    }
    // SAFETY: the caller passes a buffer of this length.
    fill(unsafe { std::slice::from_raw_parts_mut(buffer, length) })
}
