//! From a prompt's tokens to an answer's text: prompt pass, decode steps, sampling, and what ends an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;

use crate::engine::{Cancel, Engine, EngineError, Sequence};
use crate::sampler::{SampleError, Sampler};
use crate::text::{ControlTokens, Detokenizer, StopStrings, TextError, Tokenizer};
use crate::units::TokenId;

/// Why an answer could not be made.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A token could not be turned into text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// What ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// It reached the wanted number of tokens, or the context is full.
    Length,
    /// The caller cancelled.
    Cancelled,
}

/// An answer and how long it took.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Its text, without what ended it.
    pub text: String,
    /// Its tokens, the ending one included.
    pub tokens: Vec<TokenId>,
    /// What ended it.
    pub finish: Finish,
    /// Tokens of the prompt that were read; those that the conversation already held are not.
    pub prompt_tokens: usize,
    /// Seconds until the prompt was read.
    pub prefill_seconds: f64,
    /// Decode steps.
    pub steps: usize,
    /// Seconds of all decode steps.
    pub decode_seconds: f64,
}

/// A text in the making: a sequence, and the tokens whose cells it holds.
pub struct Conversation {
    sequence: Sequence,
    held: Vec<TokenId>,
}

/// What an answer is made with.
pub struct Asked<'a> {
    /// All tokens of the prompt; what the conversation already holds is not read again.
    pub prompt: &'a [TokenId],
    /// Most tokens of the answer.
    pub limit: usize,
    /// Texts that end the answer.
    pub stops: StopStrings,
    /// Whether the model's own end tokens are passed over.
    pub ignore_end: bool,
    /// Ends the answer from another thread.
    pub cancel: Cancel,
}

impl Answer {
    /// Prompt tokens a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill_seconds)
    }

    /// Decoded tokens a second.
    pub fn decode_rate(&self) -> f64 {
        rate(self.steps, self.decode_seconds)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

impl Conversation {
    /// An empty conversation.
    ///
    /// # Errors
    /// When every sequence of the plan is in use.
    pub fn new(engine: &Engine) -> Result<Self, EngineError> {
        Ok(Self { sequence: engine.sequence()?, held: Vec::new() })
    }

    /// Reads what is new in the prompt and answers it; `show` gets each piece of text as soon as it is decided.
    ///
    /// # Errors
    /// A cancellation is an answer, not an error. After an error the conversation holds what was complete.
    pub fn answer(
        &mut self,
        engine: &mut Engine,
        tokenizer: &Arc<Tokenizer>,
        sampler: &mut Sampler,
        asked: Asked<'_>,
        show: &mut dyn FnMut(&str),
    ) -> Result<Answer, GenerateError> {
        let mut shown = Shown::new(tokenizer, asked.stops, show);
        let begin = Instant::now();
        let (read, logits) = match self.read(engine, asked.prompt, &asked.cancel) {
            Err(EngineError::Cancelled) => return Ok(shown.answer(Finish::Cancelled, begin.elapsed())),
            other => other?,
        };
        shown.prompt_tokens = read;
        shown.prefill = begin.elapsed();
        for token in asked.prompt {
            sampler.accept(*token);
        }
        let begin = Instant::now();
        if asked.limit == 0 {
            return Ok(shown.answer(Finish::Length, begin.elapsed()));
        }
        let mut next = sampler.sample(&logits)?;
        let finish = loop {
            sampler.accept(next);
            shown.tokens.push(next);
            if tokenizer.is_end(next) && !asked.ignore_end {
                break Finish::Stop;
            }
            if shown.push(next)? {
                break Finish::Stop;
            }
            if shown.tokens.len() >= asked.limit || self.held.len() >= engine.plan().context {
                break Finish::Length;
            }
            let logits = match engine.step(&mut [(&mut self.sequence, next)], &asked.cancel) {
                Err(EngineError::Cancelled) => break Finish::Cancelled,
                other => other?,
            };
            self.held.push(next);
            shown.steps += 1;
            next = sampler.sample(logits.first().map_or(&[][..], Vec::as_slice))?;
        };
        Ok(shown.answer(finish, begin.elapsed()))
    }

    /// Makes the sequence hold exactly the prompt; returns how many tokens were read and the logits after the last.
    fn read(
        &mut self,
        engine: &mut Engine,
        prompt: &[TokenId],
        cancel: &Cancel,
    ) -> Result<(usize, Vec<f32>), EngineError> {
        let common = self.held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
        let kept = common.min(prompt.len().saturating_sub(1));
        self.sequence.truncate(kept)?;
        self.held.truncate(kept);
        let new = prompt.get(kept..).unwrap_or_default();
        let result = engine.prompt(&mut self.sequence, new, cancel);
        let complete = self.sequence.tokens() - kept;
        self.held.extend(new.iter().take(complete));
        Ok((new.len(), result?))
    }
}

/// The answer so far.
struct Shown<'a> {
    detokenizer: Detokenizer,
    show: &'a mut dyn FnMut(&str),
    text: String,
    tokens: Vec<TokenId>,
    prompt_tokens: usize,
    prefill: Duration,
    steps: usize,
}

impl<'a> Shown<'a> {
    fn new(tokenizer: &Arc<Tokenizer>, stops: StopStrings, show: &'a mut dyn FnMut(&str)) -> Self {
        Self {
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), ControlTokens::Hidden, stops),
            show,
            text: String::new(),
            tokens: Vec::new(),
            prompt_tokens: 0,
            prefill: Duration::ZERO,
            steps: 0,
        }
    }

    /// Shows a token's text; whether a stop string has ended the answer.
    fn push(&mut self, token: TokenId) -> Result<bool, TextError> {
        let chunk = self.detokenizer.push(token)?;
        self.put(&chunk.text);
        Ok(chunk.stopped.is_some())
    }

    fn put(&mut self, text: &str) {
        if !text.is_empty() {
            (self.show)(text);
            self.text.push_str(text);
        }
    }

    fn answer(mut self, finish: Finish, decode: Duration) -> Answer {
        let rest = self.detokenizer.finish();
        self.put(&rest.text);
        Answer {
            text: self.text,
            tokens: self.tokens,
            finish,
            prompt_tokens: self.prompt_tokens,
            prefill_seconds: self.prefill.as_secs_f64(),
            steps: self.steps,
            decode_seconds: decode.as_secs_f64(),
        }
    }
}
