//! A minimal XDR codec for test servers.

/// Decodes a request, which is never truncated.
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn u32(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk::<4>().unwrap();
        self.0 = rest;
        u32::from_be_bytes(*word)
    }

    pub fn u64(&mut self) -> u64 {
        (u64::from(self.u32()) << 32) | u64::from(self.u32())
    }

    pub fn opaque(&mut self) -> Vec<u8> {
        let length = self.u32() as usize;
        self.fixed(length)
    }

    pub fn fixed(&mut self, length: usize) -> Vec<u8> {
        let data = self.0[..length].to_vec();
        self.0 = &self.0[length.next_multiple_of(4)..];
        data
    }

    /// Returns the attributes of a bitmap, in order.
    pub fn bitmap(&mut self) -> Vec<u32> {
        let words: Vec<u32> = (0..self.u32()).map(|_| self.u32()).collect();
        let set = |attribute: &u32| {
            words
                .get(*attribute as usize / 32)
                .is_some_and(|word| word & (1 << (attribute % 32)) != 0)
        };
        (0..64).filter(set).collect()
    }
}

#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn raw(&mut self, data: &[u8]) -> &mut Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn opaque(&mut self, data: &[u8]) -> &mut Self {
        self.u32(u32::try_from(data.len()).unwrap()).raw(data)
    }

    pub fn bitmap(&mut self, attributes: &[u32]) -> &mut Self {
        let word = |number: u32| {
            attributes
                .iter()
                .filter(|a| **a / 32 == number)
                .fold(0, |word, a| word | (1 << (a % 32)))
        };
        self.u32(2).u32(word(0)).u32(word(1))
    }
}
