//! Finds the route of a request.

use std::collections::HashMap;

use http::Method;

use super::problems::{Problems, Span};
use super::route::Route;

/// The routes of a policy. The most specific path has a request; methods are looked at after that.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    paths: matchit::Router<Vec<usize>>,
    routes: Vec<Route>,
}

impl Routes {
    pub(super) fn new(routes: impl Iterator<Item = (Route, Span)>, problems: &Problems) -> Self {
        let mut all = Self::default();
        let mut by_path: HashMap<String, Vec<usize>> = HashMap::new();
        for (route, span) in routes {
            let same_path = by_path.entry(route.pattern.path.clone()).or_default();
            let rival =
                same_path.iter().map(|&index| &all.routes[index]).find(|other| overlap(&route, other));
            if let Some(rival) = rival {
                let message = format!("{} has the requests of {} too", route.pattern, rival.pattern);
                problems.add(span.clone(), message, "put the budgets of both into one route");
            }
            if same_path.is_empty() && all.paths.insert(route.pattern.path.clone(), Vec::new()).is_err() {
                let message = format!("{} has another name where another route has one", route.pattern);
                problems.add(span, message, "use the same names in braces");
                continue;
            }
            same_path.push(all.routes.len());
            all.routes.push(route);
        }
        for (path, routes) in by_path {
            let mut paths = std::mem::take(&mut all.paths);
            drop(paths.remove(path.clone()));
            let _ = paths.insert(path, routes); // It was there.
            all.paths = paths;
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
        let route =
            found.value.iter().map(|&index| &self.routes[index]).find(|route| takes(route, method))?;
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
