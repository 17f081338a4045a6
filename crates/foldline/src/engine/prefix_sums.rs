//! Sums over a list that changes: a Fenwick tree.

/// Prefix sums of a list of numbers. Changes and queries take logarithmic time.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixSums {
    /// Node `i` (from 1) has the sum of the numbers from `i - lowest_bit(i)` to `i - 1`.
    nodes: Vec<u64>,
}

impl PrefixSums {
    /// Appends a number.
    pub(crate) fn push(&mut self, number: u64) {
        let node = self.nodes.len() + 1;
        let covered_from = node - lowest_bit(node);
        let covered = self.sum(node - 1) - self.sum(covered_from);
        self.nodes.push(covered + number);
    }

    /// Replaces the number at `index`, which was `old`.
    pub(crate) fn replace(&mut self, index: usize, old: u64, new: u64) {
        let mut node = index + 1;
        while node <= self.nodes.len() {
            self.nodes[node - 1] = self.nodes[node - 1] - old + new;
            node += lowest_bit(node);
        }
    }

    /// Returns the sum of the first `count` numbers.
    pub(crate) fn sum(&self, count: usize) -> u64 {
        let mut node = count;
        let mut sum = 0;
        while node > 0 {
            sum += self.nodes[node - 1];
            node -= lowest_bit(node);
        }
        sum
    }

    /// Returns the smallest count of numbers whose sum is at least `sum`; the length of the list if there is none.
    pub(crate) fn count_with_sum(&self, sum: u64) -> usize {
        let (mut count, mut missing) = (0, sum);
        let mut step = self.nodes.len().checked_ilog2().map_or(0, |log| 1 << log);
        while step > 0 {
            // The numbers up to `count + step` are too few as long as their sum is below the one required.
            if let Some(&covered) = self.nodes.get(count + step - 1).filter(|&&covered| covered < missing) {
                count += step;
                missing -= covered;
            }
            step /= 2;
        }
        if missing == 0 { count } else { (count + 1).min(self.nodes.len()) }
    }
}

fn lowest_bit(node: usize) -> usize {
    node & node.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_equal_those_of_the_list(
            mut numbers in prop::collection::vec(0_u64..5, 0..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..5), 0..20),
        ) {
            let mut sums = PrefixSums::default();
            numbers.iter().for_each(|&number| sums.push(number));
            let changes = if numbers.is_empty() { Vec::new() } else { changes };
            for (index, new) in changes {
                let index = index.index(numbers.len());
                sums.replace(index, std::mem::replace(&mut numbers[index], new), new);
            }
            let total: u64 = numbers.iter().sum();
            for count in 0..=numbers.len() {
                prop_assert_eq!(sums.sum(count), numbers[..count].iter().sum::<u64>());
            }
            for sum in 0..=total + 2 {
                let first = (0..=numbers.len()).find(|&count| numbers[..count].iter().sum::<u64>() >= sum);
                prop_assert_eq!(sums.count_with_sum(sum), first.unwrap_or(numbers.len()), "{}", sum);
            }
        }
    }
}
