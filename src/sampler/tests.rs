use proptest::prelude::*;
use rand_chacha::rand_core::Rng;

use super::*;

fn sampler(settings: SamplerSettings, vocabulary: usize) -> Sampler {
    Sampler::new(settings, vocabulary).unwrap()
}

fn drawing() -> SamplerSettings {
    SamplerSettings { temperature: 1.0, ..SamplerSettings::default() }
}

#[test]
fn greedy_takes_the_best_and_of_equals_the_lower_id() {
    let mut greedy = sampler(SamplerSettings::default(), 4);
    assert_eq!(greedy.sample(&[0.5, 2.0, 2.0, -1.0]), Ok(1));
    assert_eq!(greedy.sample(&[-0.0, 0.0, -1.0, -0.0]), Ok(0));
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY, -4.0]), Ok(1));
}

#[test]
fn broken_logits_are_errors() {
    let mut greedy = sampler(SamplerSettings::default(), 3);
    assert!(matches!(greedy.sample(&[0.0, f32::NAN, 0.0]), Err(SampleError::BadLogit { token: 1, .. })));
    assert!(matches!(greedy.sample(&[0.0, 0.0, f32::INFINITY]), Err(SampleError::BadLogit { token: 2, .. })));
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NonePossible));
    assert_eq!(greedy.sample(&[0.0; 2]), Err(SampleError::WrongLength { found: 2, wanted: 3 }));
    assert_eq!(sampler(drawing(), 0).sample(&[]), Err(SampleError::NonePossible));
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = fn(&mut SamplerSettings);
    let cases: [(&str, Change); 13] = [
        ("temperature", |s| s.temperature = -0.1),
        ("temperature", |s| s.temperature = f32::NAN),
        ("temperature", |s| s.temperature = f32::INFINITY),
        ("top_k", |s| s.top_k = 101),
        ("top_k", |s| s.top_k = -1),
        ("top_p", |s| s.top_p = 0.0),
        ("top_p", |s| s.top_p = 1.5),
        ("min_p", |s| s.min_p = f32::NAN),
        ("repetition_penalty", |s| s.repetition_penalty = 0.0),
        ("presence_penalty", |s| s.presence_penalty = 1e9),
        ("frequency_penalty", |s| s.frequency_penalty = f32::NEG_INFINITY),
        ("penalty_window", |s| s.penalty_window = -2),
        ("penalty_window", |s| s.penalty_window = i64::MAX),
    ];
    for (field, change) in cases {
        let mut settings = drawing();
        change(&mut settings);
        let error = Sampler::new(settings, 100).unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().starts_with(field), "{error}");
    }
    assert!(Sampler::new(SamplerSettings { top_k: 100, ..drawing() }, 100).is_ok());
}

#[test]
fn penalties_follow_the_window() {
    let settings = SamplerSettings {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        penalty_window: 3,
        ..SamplerSettings::default()
    };
    let mut sampler = sampler(settings, 3);
    for token in [0, 0, 2] {
        sampler.accept(token);
    }
    // Token 0: 4 becomes 4 / 2 - 0.5 - 2 * 0.25 = 1. Token 2: -1 becomes -1 * 2 - 0.5 - 0.25 = -2.75.
    assert_eq!(sampler.sample(&[4.0, 1.01, -1.0]), Ok(1));
    assert_eq!(sampler.sample(&[4.0, 0.99, -1.0]), Ok(0));
    assert_eq!(sampler.sample(&[-6.0, -2.8, -1.0]), Ok(2));
    assert_eq!(sampler.sample(&[-6.0, -2.7, -1.0]), Ok(1));
    for token in [1, 1] {
        sampler.accept(token);
    }
    // Now 1, 1 and 2 are recent, and 0 is not.
    assert_eq!(sampler.sample(&[0.9, 4.0, -9.0]), Ok(1));
    assert_eq!(sampler.sample(&[1.1, 4.0, -9.0]), Ok(0));
}

#[test]
fn a_window_of_minus_one_is_the_whole_sequence() {
    let settings = SamplerSettings { presence_penalty: 1.0, penalty_window: -1, ..SamplerSettings::default() };
    let mut sampler = sampler(settings, 200);
    for token in 0..199 {
        sampler.accept(token);
    }
    assert_eq!(sampler.sample(&[0.0; 200]), Ok(199));
}

/// A change of the generator, its seeding or the draw changes every user's seeded texts.
#[test]
fn seeded_draws_do_not_change() {
    let logits: Vec<f32> = (0..50_u16).map(|token| f32::from(token * 7 % 50) / 10.0).collect();
    let draw = |seed| {
        let settings = SamplerSettings { top_k: 40, top_p: 0.95, min_p: 0.05, seed, ..drawing() };
        let mut sampler = sampler(settings, 50);
        (0..12).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_ne!(draw(42), draw(43));
    assert_eq!(draw(42), [27, 4, 42, 13, 28, 14, 28, 48, 41, 21, 49, 33]);
}

/// What the settings keep and how probable it is, written as simply as possible.
fn reference(logits: &[f32], settings: &SamplerSettings) -> Vec<(TokenId, f64)> {
    let mut sorted: Vec<(TokenId, f64)> = (0..).zip(logits.iter().map(|&logit| f64::from(logit))).collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if settings.top_k > 0 {
        sorted.truncate(settings.top_k as usize);
    }
    let best = sorted[0].1;
    let total: f64 = sorted.iter().map(|(_, logit)| (logit - best).exp()).sum();
    let mut sum = 0.0;
    let mut keep = 0;
    while keep < sorted.len() && (keep == 0 || sum < f64::from(settings.top_p)) {
        sum += (sorted[keep].1 - best).exp() / total;
        keep += 1;
    }
    sorted.truncate(keep);
    sorted.retain(|(_, logit)| (logit - best).exp() >= f64::from(settings.min_p));
    let temperature = f64::from(settings.temperature);
    let total: f64 = sorted.iter().map(|(_, logit)| ((logit - best) / temperature).exp()).sum();
    sorted.into_iter().map(|(token, logit)| (token, ((logit - best) / temperature).exp() / total)).collect()
}

/// Pearson's statistic of draws against what is wanted, and its degrees of freedom.
fn chi_square(draws: &[TokenId], wanted: &[(TokenId, f64)]) -> (f64, f64) {
    let mut counts = std::collections::HashMap::new();
    for &token in draws {
        *counts.entry(token).or_insert(0_u32) += 1;
    }
    let (mut statistic, mut cells) = (0.0, 0.0);
    let (mut rest, mut rest_wanted) = (0.0, 0.0);
    for &(token, probability) in wanted {
        let seen = f64::from(counts.remove(&token).unwrap_or(0));
        let expected = probability * draws.len() as f64;
        // Rare tokens are counted together: the statistic means nothing for them one by one.
        if expected < 8.0 {
            rest += seen;
            rest_wanted += expected;
        } else {
            statistic += (seen - expected).powi(2) / expected;
            cells += 1.0;
        }
    }
    assert!(counts.is_empty(), "tokens that should have been left out: {counts:?}");
    if rest_wanted >= 8.0 {
        statistic += (rest - rest_wanted).powi(2) / rest_wanted;
        cells += 1.0;
    }
    (statistic, f64::max(cells - 1.0, 0.0))
}

/// Whether the statistic is five standard deviations too large, and some more for few degrees of freedom.
fn is_off((statistic, freedom): (f64, f64)) -> bool {
    statistic > freedom + 5.0 * (2.0 * freedom).sqrt() + 10.0
}

/// The draws have the distribution of the settings, and a wrong distribution would be noticed.
#[test]
fn draws_have_the_distribution_of_the_settings() {
    const DRAWS: usize = 10_000;
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let (mut by_k, mut by_p, mut by_min, mut noticed, mut cases) = (0, 0, 0, 0, 0);
    for case in 0..30 {
        let vocabulary = 2 + (uniform() * 200.0) as usize;
        let logits: Vec<f32> = (0..vocabulary).map(|_| (uniform() * 6.0 - 3.0) as f32).collect();
        let mut pick = |off: f64, on: f64| if uniform() < 0.5 { off } else { on };
        let settings = SamplerSettings {
            temperature: pick(1.0, 0.6) as f32,
            top_k: pick(0.0, vocabulary as f64 / 3.0) as i64,
            top_p: pick(1.0, 0.7) as f32,
            min_p: pick(0.0, 0.08) as f32,
            seed: case,
            ..SamplerSettings::default()
        };
        let wanted = reference(&logits, &settings);
        let mut sampler = sampler(settings.clone(), vocabulary);
        let draws: Vec<TokenId> = (0..DRAWS).map(|_| sampler.sample(&logits).unwrap()).collect();
        let found = chi_square(&draws, &wanted);
        assert!(!is_off(found), "case {case}: {found:?} for {settings:?}");
        let without = |change: fn(&mut SamplerSettings)| {
            let mut other = settings.clone();
            change(&mut other);
            reference(&logits, &other).len() > wanted.len()
        };
        by_k += usize::from(without(|settings| settings.top_k = 0));
        by_p += usize::from(without(|settings| settings.top_p = 1.0));
        by_min += usize::from(without(|settings| settings.min_p = 0.0));
        // Would a temperature that is half as high again be noticed?
        if wanted.len() > 10 {
            cases += 1;
            let other = SamplerSettings { temperature: settings.temperature * 1.5, ..settings };
            noticed += usize::from(is_off(chi_square(&draws, &reference(&logits, &other))));
        }
    }
    println!(
        "limited by top-k {by_k}, top-p {by_p}, min-p {by_min}; wrong temperature noticed in {noticed} of {cases}"
    );
    assert!(by_k > 0 && by_p > 0 && by_min > 0);
    assert!(cases > 10 && noticed * 10 >= cases * 9, "the test is too weak: {noticed} of {cases}");
}

proptest! {
    /// The candidates that are kept are the reference's, however large the vocabulary and however flat the logits.
    #[test]
    fn kept_candidates_are_the_references(
        vocabulary in 1_usize..3000,
        spread in prop_oneof![Just(0.0_f32), 0.01_f32..8.0],
        seed in any::<u64>(),
        top_k in prop_oneof![Just(0_i64), 1_i64..3000],
        top_p in prop_oneof![Just(1.0_f32), 0.01_f32..1.0],
        min_p in prop_oneof![Just(0.0_f32), 0.0_f32..0.5],
    ) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // 64 steps: many logits are equal.
        let logits: Vec<f32> = (0..vocabulary).map(|_| (random.next_u64() % 64) as f32 / 64.0 * spread).collect();
        let settings = SamplerSettings { top_k: top_k.min(vocabulary as i64), top_p, min_p, ..drawing() };
        let wanted: Vec<TokenId> = reference(&logits, &settings).iter().map(|&(token, _)| token).collect();
        let mut sampler = sampler(settings, vocabulary);
        let token = sampler.sample(&logits).unwrap();
        let kept: Vec<TokenId> = sampler.candidates.iter().map(|candidate| candidate.token).collect();
        prop_assert!(kept.contains(&token));
        // Where the sum meets p exactly, rounding may decide on one candidate more or less.
        prop_assert!(kept.len().abs_diff(wanted.len()) <= usize::from(top_p < 1.0), "{} and {}", kept.len(), wanted.len());
        let (mut kept, mut wanted) = (kept, wanted);
        kept.sort_unstable();
        wanted.sort_unstable();
        let (more, fewer) = if kept.len() > wanted.len() { (kept, wanted) } else { (wanted, kept) };
        prop_assert!(fewer.iter().all(|token| more.binary_search(token).is_ok()));
    }
}
