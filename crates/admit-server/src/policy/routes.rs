//! Finds the route of a request.

use std::collections::HashMap;

use http::Method;

use super::problems::{Problems, Span};
use super::route::Route;
use crate::path::Reading;

/// The routes of a policy. The most specific path has a request; methods are looked at after that.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// The position of each path among those of `by_path`.
    paths: matchit::Router<usize>,
    /// The same for what stands before `/{*rest}`, where the rest is empty and no other path fits.
    without_rest: matchit::Router<usize>,
    /// The positions of the routes of each path.
    by_path: Vec<Vec<usize>>,
    routes: Vec<Route>,
}

/// A route, and what stands for the names in its path.
type Found<'r, 'p> = (&'r Route, Vec<(String, &'p str)>);

impl Routes {
    pub(super) fn new(routes: impl Iterator<Item = (Route, Span)>, problems: &Problems) -> Self {
        let mut all = Self::default();
        let mut positions: HashMap<String, usize> = HashMap::new();
        for (route, span) in routes {
            let path = match Reading::of(&route.pattern.path) {
                Ok(Reading { path, .. }) => path,
                Err(error) => {
                    problems.add(
                        span,
                        format!("no request has {:?}: {error}", route.pattern.path),
                        "write another path",
                    );
                    continue;
                }
            };
            let position = match positions.get(&path) {
                Some(position) => *position,
                None if all.paths.insert(path.clone(), all.by_path.len()).is_ok() => {
                    if let Some((before, _)) = path.split_once("/{*") {
                        let before = if before.is_empty() { "/" } else { before };
                        let _ = all.without_rest.insert(before, all.by_path.len()); // Only one of these fits `paths`.
                    }
                    positions.insert(path, all.by_path.len());
                    all.by_path.push(Vec::new());
                    all.by_path.len() - 1
                }
                None => {
                    let message = format!("{} has another name where another route has one", route.pattern);
                    problems.add(span, message, "use the same names in braces");
                    continue;
                }
            };
            let same_path = all.by_path[position].iter().map(|&index| &all.routes[index]);
            if let Some(rival) = same_path.into_iter().find(|other| overlap(&route, other)) {
                let message = format!("{} has the requests of {} too", route.pattern, rival.pattern);
                problems.add(span, message, "put the budgets of both into one route");
            }
            all.by_path[position].push(all.routes.len());
            all.routes.push(route);
        }
        all
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Route> {
        self.routes.iter()
    }

    /// The route of a request, and what stands for the names in its path, in the form that a [`Reading`] has.
    pub fn find<'p>(&self, method: &Method, path: &'p str) -> Option<Found<'_, 'p>> {
        let found = self.paths.at(path).or_else(|_| self.without_rest.at(path)).ok()?;
        let at = |method: &str| {
            let mut routes = self.by_path[*found.value].iter().map(|&index| &self.routes[index]);
            routes.find(|route| takes(route, method))
        };
        // Services answer HEAD with what runs for GET.
        let route =
            at(method.as_str()).or_else(|| if is(method.as_str(), "HEAD") { at("GET") } else { None })?;
        let names = found.params.iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Some((route, names))
    }

    /// The route of a request that services may read in more than one way: the one that a plain name or a name in braces
    /// leads to, before one that takes the rest of a path.
    ///
    /// # Errors
    /// [`TwoRoutes`] if it has two.
    pub fn find_read<'p>(
        &self,
        method: &Method,
        reading: &'p Reading,
    ) -> Result<Option<Found<'_, 'p>>, TwoRoutes> {
        let whole = self.find(method, &reading.path);
        let split = reading.split.as_deref().and_then(|path| self.find(method, path));
        match (whole, split) {
            (whole, None) => Ok(whole),
            (None, split) => Ok(split),
            (Some(whole), Some(split)) if std::ptr::eq(whole.0, split.0) => Ok(Some(whole)),
            (Some(whole), Some(split)) => match (takes_rest(whole.0), takes_rest(split.0)) {
                (false, true) => Ok(Some(whole)),
                (true, false) => Ok(Some(split)),
                _ => Err(TwoRoutes),
            },
        }
    }
}

/// A path with an encoded slash that has one route with it, and another without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path has an encoded slash, and is that of two routes")]
pub struct TwoRoutes;

fn takes_rest(route: &Route) -> bool {
    route.pattern.path.contains("/{*")
}

/// Some services take `post` for `POST`.
fn is(method: &str, known: &str) -> bool {
    method.eq_ignore_ascii_case(known)
}

fn takes(route: &Route, method: &str) -> bool {
    let methods = &route.pattern.methods;
    methods.is_empty() || methods.iter().any(|known| is(method, known.as_str()))
}

fn overlap(one: &Route, other: &Route) -> bool {
    one.pattern.methods.is_empty()
        || other.pattern.methods.is_empty()
        || one.pattern.methods.iter().any(|method| other.pattern.methods.contains(method))
}
