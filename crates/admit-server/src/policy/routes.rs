//! Finds the route of a request.

use std::collections::HashMap;

use http::Method;

use super::problems::{Problems, Span};
use super::route::Route;
use crate::path::Reading;

/// The most methods that the routes of a policy name: a request's method is looked for among them one by one. Registered are
/// some forty.
const MAX_METHODS: usize = 64;

/// The routes of a policy. Of those that have a request's method, the one with the most specific path has the request: a
/// route for one method takes no other method out of a less specific one.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// The routes of each method that one of them names.
    named: Vec<(Method, Paths)>,
    /// Those of all other methods.
    other: Paths,
    routes: Vec<Route>,
}

/// The routes of one method, by their paths.
#[derive(Clone, Debug, Default)]
struct Paths {
    /// The position of the route of each path.
    whole: matchit::Router<usize>,
    /// The same for what stands before `/{*rest}`, where the rest is empty and no other path fits.
    without_rest: matchit::Router<usize>,
}

/// A route, and what stands for the names in its path.
type Found<'r, 'p> = (&'r Route, Vec<(String, &'p str)>);

impl Routes {
    pub(super) fn new(routes: impl Iterator<Item = (Route, Span)>, problems: &Problems) -> Self {
        let mut all: Vec<Route> = Vec::new();
        // The positions of the routes of each path, in the order of the file.
        let mut by_path: Vec<(String, Vec<usize>)> = Vec::new();
        let mut positions: HashMap<String, usize> = HashMap::new();
        let mut paths = matchit::Router::new(); // Tells which paths are not told apart.
        let mut methods: Vec<Method> = Vec::new();
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
                None if paths.insert(path.clone(), ()).is_ok() => {
                    positions.insert(path.clone(), by_path.len());
                    by_path.push((path, Vec::new()));
                    by_path.len() - 1
                }
                None => {
                    let message = format!("{} has another name where another route has one", route.pattern);
                    problems.add(span, message, "use the same names in braces");
                    continue;
                }
            };
            let of_path = &mut by_path[position].1;
            let same_path = of_path.iter().map(|&index| &all[index]);
            if let Some(rival) = same_path.into_iter().find(|other| overlap(&route, other)) {
                let message = format!("{} has the requests of {} too", route.pattern, rival.pattern);
                problems.add(span.clone(), message, "put the budgets of both into one route");
            }
            of_path.push(all.len());
            // Services answer HEAD with what runs for GET.
            let head = route.pattern.methods.contains(&Method::GET).then_some(Method::HEAD);
            for method in route.pattern.methods.iter().chain(&head) {
                if !methods.contains(method) {
                    methods.push(method.clone());
                }
            }
            all.push(route);
            if methods.len() > MAX_METHODS {
                let message = format!("the routes name more than {MAX_METHODS} methods");
                problems.add(span, message, "write * for all of them");
                break;
            }
        }
        let of = |method: &str| Paths::new(method, &by_path, &all);
        let other = of("");
        let named = methods.into_iter().map(|method| (method.clone(), of(method.as_str()))).collect();
        Self { named, other, routes: all }
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Route> {
        self.routes.iter()
    }

    /// The route of a request, and what stands for the names in its path, in the form that a [`Reading`] has.
    pub fn find<'p>(&self, method: &Method, path: &'p str) -> Option<Found<'_, 'p>> {
        let named = self.named.iter().find(|(known, _)| is(method.as_str(), known.as_str()));
        let paths = named.map_or(&self.other, |(_, paths)| paths);
        let found = paths.whole.at(path).or_else(|_| paths.without_rest.at(path)).ok()?;
        let names = found.params.iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Some((self.routes.get(*found.value)?, names))
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

impl Paths {
    /// Those of a method, of which an empty one stands for what no route names.
    fn new(method: &str, by_path: &[(String, Vec<usize>)], routes: &[Route]) -> Self {
        let mut paths = Self::default();
        for (path, positions) in by_path {
            let at = |method: &str| positions.iter().find(|&&position| takes(&routes[position], method));
            let found = at(method).or_else(|| if is(method, "HEAD") { at("GET") } else { None });
            let Some(&position) = found else { continue };
            // Both are told apart from the others, as they are among all paths.
            let _ = paths.whole.insert(path, position);
            if let Some((before, _)) = path.split_once("/{*") {
                let _ = paths.without_rest.insert(if before.is_empty() { "/" } else { before }, position);
            }
        }
        paths
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
