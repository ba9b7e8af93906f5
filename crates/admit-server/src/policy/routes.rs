//! Finds the route of a request.

use std::collections::HashMap;

use http::Method;

use super::problems::{Problems, Span};
use super::route::Route;

/// The routes of a policy. The most specific path has a request; methods are looked at after that.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// The position of each path among those of `by_path`.
    paths: matchit::Router<usize>,
    /// The positions of the routes of each path.
    by_path: Vec<Vec<usize>>,
    routes: Vec<Route>,
}

impl Routes {
    pub(super) fn new(routes: impl Iterator<Item = (Route, Span)>, problems: &Problems) -> Self {
        let mut all = Self::default();
        let mut positions: HashMap<String, usize> = HashMap::new();
        for (route, span) in routes {
            let path = &route.pattern.path;
            let position = match positions.get(path) {
                Some(position) => *position,
                None if all.paths.insert(path.clone(), all.by_path.len()).is_ok() => {
                    positions.insert(path.clone(), all.by_path.len());
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

    /// The route of a request, and what stands for the names in its path.
    pub fn find<'p>(&self, method: &Method, path: &'p str) -> Option<(&Route, Vec<(String, &'p str)>)> {
        let found = self.paths.at(path).ok()?;
        let route = self.by_path[*found.value]
            .iter()
            .map(|&index| &self.routes[index])
            .find(|route| takes(route, method))?;
        let names = found.params.iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Some((route, names))
    }
}

fn takes(route: &Route, method: &Method) -> bool {
    route.pattern.methods.is_empty() || route.pattern.methods.contains(method)
}

fn overlap(one: &Route, other: &Route) -> bool {
    one.pattern.methods.is_empty()
        || other.pattern.methods.is_empty()
        || one.pattern.methods.iter().any(|method| other.pattern.methods.contains(method))
}
