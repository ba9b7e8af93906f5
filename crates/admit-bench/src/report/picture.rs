//! The picture: how many times as good as each peer Admit is, beside what it has to be.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::value::number;
use crate::case::Bar;
use crate::rounds::Outcome;

const WIDTH: i32 = 1_080;
const LINE: i32 = 20;
const TOP: i32 = 44;
/// Where the scale begins and ends.
const SCALE: (i32, i32) = (560, 1_000);

const GREEN: RGBColor = RGBColor(44, 123, 92);
const RED: RGBColor = RGBColor(178, 58, 46);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// One pair, with larger as better.
struct Pair {
    name: String,
    times: f64,
    /// The worst and the best round.
    range: [f64; 2],
    bar: Option<f64>,
}

/// Draws what was measured, if anything was.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn draw(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let pairs: Vec<Pair> = outcomes.iter().flat_map(pairs).collect();
    let height = TOP + LINE * pairs.len() as i32 + 16;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    lines(&area, &pairs, height).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

fn pairs(outcome: &Outcome) -> Vec<Pair> {
    let Ok(compared) = &outcome.measured else { return Vec::new() };
    let mut pairs = Vec::new();
    for (i, measure) in outcome.measures.iter().enumerate() {
        for peer in &compared.peers {
            let (Ok(_), Some(ratio), None) = (&peer.measured, peer.ratios.get(i), measure.limit) else {
                continue;
            };
            let times = |ratio: f64| if measure.unit.is_better_if_less() { ratio.recip() } else { ratio };
            let bar = peer.bars.get(i).copied().flatten();
            let bar = bar.map(|bar| match bar {
                Bar::AtLeast(bar) | Bar::AtMost(bar) => times(bar),
            });
            let range = [ratio.lowest, ratio.highest].map(times);
            let name = format!("{}: {} ÷ {}", outcome.name, measure.what, peer.name);
            pairs.push(Pair { name, times: times(ratio.median), range, bar });
        }
    }
    pairs
}

type Failed = DrawingAreaErrorKind<std::io::Error>;

fn lines(area: &DrawingArea<SVGBackend<'_>, Shift>, pairs: &[Pair], height: i32) -> Result<(), Failed> {
    let text = |color: RGBColor| ("sans-serif", 12).into_font().color(&color);
    let at = |text: TextStyle<'static>, hpos| text.pos(Pos::new(hpos, VPos::Center));
    area.fill(&WHITE)?;
    let title = "Admit ÷ peer, larger is better, on a logarithmic scale; grey from the worst round to the best, black the bar";
    area.draw(&Text::new(title, (12, 14), at(text(BLACK), HPos::Left)))?;

    let all = pairs.iter().flat_map(|pair| pair.range.into_iter().chain(pair.bar));
    let (least, most) =
        all.fold((0.5_f64, 2.0_f64), |(least, most), times| (least.min(times), most.max(times)));
    let (least, most) = (least.log10().floor(), most.log10().ceil());
    let place = |times: f64| {
        let part = (times.log10() - least) / (most - least);
        SCALE.0 + (part * f64::from(SCALE.1 - SCALE.0)) as i32
    };
    for power in least as i32..=most as i32 {
        let times = 10_f64.powi(power);
        let x = place(times);
        area.draw(&PathElement::new(vec![(x, TOP - 6), (x, height - 8)], GREY.mix(0.4)))?;
        area.draw(&Text::new(number(times), (x, TOP - 14), at(text(GREY), HPos::Center)))?;
    }
    for (i, pair) in pairs.iter().enumerate() {
        let y = TOP + LINE * i as i32 + LINE / 2;
        let is_met = pair.bar.is_none_or(|bar| pair.times >= bar);
        let color = if is_met { GREEN } else { RED };
        let (from, to) = (place(1.0).min(place(pair.times)), place(1.0).max(place(pair.times)));
        area.draw(&Text::new(pair.name.clone(), (SCALE.0 - 12, y), at(text(BLACK), HPos::Right)))?;
        area.draw(&Rectangle::new([(from, y - 6), (to.max(from + 1), y + 6)], color.filled()))?;
        let range = pair.range.map(|times| (place(times), y));
        area.draw(&PathElement::new(range.to_vec(), GREY.stroke_width(3)))?;
        if let Some(bar) = pair.bar {
            area.draw(&PathElement::new(
                vec![(place(bar), y - 8), (place(bar), y + 8)],
                BLACK.stroke_width(2),
            ))?;
        }
        area.draw(&Text::new(number(pair.times), (SCALE.1 + 10, y), at(text(color), HPos::Left)))?;
    }
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::table::tests::outcome;

    #[test]
    fn each_pair_that_was_measured_has_a_line() {
        let file = tempfile::NamedTempFile::with_suffix(".svg").unwrap();
        draw(file.path(), &[outcome()]).unwrap();
        let picture = std::fs::read_to_string(file.path()).unwrap();
        assert!(
            picture.contains("slow") && picture.contains("fast") && !picture.contains("gone"),
            "{picture}"
        );
    }
}
