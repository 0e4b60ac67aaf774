use super::TextError;

/// Watches a stream of text for strings that end it, and holds back what may still become one.
///
/// The stream ends at the first character that completes a stop string; of several that end there, the longest counts.
/// So the outcome does not depend on how the text was cut into pieces. The stop string itself is not part of the text.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    hit: Option<usize>,
}

impl StopStrings {
    /// Watches for `stops`; none is fine.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(TextError::EmptyStop { index }),
            None => Ok(Self { stops, held: String::new(), hit: None }),
        }
    }

    /// Takes the next piece and gives back what is decided. Nothing comes after a hit.
    pub fn push(&mut self, piece: &str) -> String {
        if self.hit.is_some() {
            return String::new();
        }
        let searched = self.held.len();
        self.held.push_str(piece);
        if let Some((start, index)) = self.first_stop(searched) {
            self.hit = Some(index);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let undecided = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - undecided);
        std::mem::replace(&mut self.held, rest)
    }

    /// The text has ended: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The index of the stop string that was found.
    pub fn hit(&self) -> Option<usize> {
        self.hit
    }

    /// Where the first completed stop string starts, and which one it is. One that ended before `searched` would have
    /// been found earlier.
    fn first_stop(&self, searched: usize) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let mut from = searched.saturating_sub(stop.len());
            while !self.held.is_char_boundary(from) {
                from += 1;
            }
            let start = from + self.held.get(from..)?.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }
}

/// Bytes at the end of `text` that are the begin of `stop`, at most all but its last character.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(at, _)| at).rev();
    starts.take_while(|&at| at > 0).find(|&at| stop.get(..at).is_some_and(|begin| text.ends_with(begin))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut watch = StopStrings::new(stops.iter().map(|&stop| stop.to_owned()).collect()).unwrap();
        let mut text: String = pieces.iter().map(|piece| watch.push(piece)).collect();
        text.push_str(&watch.finish());
        (text, watch.hit())
    }

    #[test]
    fn half_a_stop_string_is_held_back_and_given_at_the_end() {
        let mut watch = StopStrings::new(vec!["\nUser:".to_owned()]).unwrap();
        assert_eq!(watch.push("Hello\nUs"), "Hello");
        assert_eq!(watch.push("e "), "\nUse ");
        assert_eq!(watch.push("\n\n"), "\n");
        assert_eq!(watch.finish(), "\n");
        assert_eq!(watch.hit(), None);
    }

    #[test]
    fn a_stop_string_over_several_pieces_ends_the_text() {
        assert_eq!(run(&["\nUser:"], &["a\nU", "se", "r", ": b", "c"]), ("a".to_owned(), Some(0)));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), Some(0)));
        assert_eq!(run(&["стоп"], &["раз ст", "о", "п"]), ("раз ".to_owned(), Some(0)));
    }

    #[test]
    fn the_first_to_be_complete_wins_then_the_longest() {
        assert_eq!(run(&["abc", "b"], &["xabc"]), ("xa".to_owned(), Some(1)));
        assert_eq!(run(&["b", "ab"], &["xa", "b"]), ("x".to_owned(), Some(1)));
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let error = StopStrings::new(vec!["a".to_owned(), String::new()]).unwrap_err();
        assert_eq!(error, TextError::EmptyStop { index: 1 });
    }

    proptest::proptest! {
        /// However the text is cut, the outcome is that of one piece, and that of a search one character at a time.
        #[test]
        fn cuts_do_not_matter(
            text in "[ab→]{0,24}",
            stops in proptest::collection::vec("[ab→]{1,4}", 0..3),
            cuts in proptest::collection::vec(0_usize..25, 0..6),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut wanted = (text.clone(), None);
            'search: for end in 1..=chars.len() {
                let begin: String = chars[..end].iter().collect();
                let mut longest: Option<(usize, usize)> = None;
                for (index, stop) in stops.iter().enumerate() {
                    if begin.ends_with(stop.as_str()) && longest.is_none_or(|(length, _)| stop.len() > length) {
                        longest = Some((stop.len(), index));
                    }
                }
                if let Some((length, index)) = longest {
                    wanted = (begin[..begin.len() - length].to_owned(), Some(index));
                    break 'search;
                }
            }
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            let pieces: Vec<String> = cuts.windows(2).map(|pair| chars[pair[0]..pair[1]].iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            proptest::prop_assert_eq!(run(&stops, &pieces), wanted);
        }
    }
}
