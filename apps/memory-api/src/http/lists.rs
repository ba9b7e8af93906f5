//! `GET /memory/skills` and `GET /memory/projects`: what was learnt.

use admit_tower::{Problem, Rejection};
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::shape::{Asked, Malformed};
use super::{App, respond, time, unavailable};
use crate::keys::Caller;
use crate::params::List;
use crate::storage::{Position, Project, Skill};

#[derive(Serialize)]
struct Skills {
    skills: Vec<SkillBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct SkillBody {
    text: String,
    times_learnt: i64,
    first_learnt_at: String,
    last_learnt_at: String,
}

#[derive(Serialize)]
struct Projects {
    projects: Vec<ProjectBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct ProjectBody {
    name: String,
    items: i64,
    last_item_at: String,
}

fn page(
    malformed: Option<Extension<Malformed>>,
    asked: Option<Extension<Asked>>,
) -> Result<List, Box<Problem>> {
    match (malformed, asked) {
        (Some(Extension(Malformed(problem))), _) => Err(problem),
        (None, Some(Extension(Asked::List(list)))) => Ok(list),
        _ => Err(Box::new(Rejection::Internal.problem())),
    }
}

pub(super) async fn skills(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    malformed: Option<Extension<Malformed>>,
    asked: Option<Extension<Asked>>,
) -> Response {
    let list = match page(malformed, asked) {
        Ok(list) => list,
        Err(problem) => return respond(*problem),
    };
    let before = match list.from {
        Some(Position::Skill(digest)) => Some(digest),
        _ => None,
    };
    match app.storage.skills(&caller.tenant, before, list.limit).await {
        Ok(slice) => {
            let next_cursor = slice.next.map(|position| list.binding.encode(&position));
            let skills = slice.rows.into_iter().map(SkillBody::from).collect();
            Json(Skills { skills, next_cursor }).into_response()
        }
        Err(cause) => unavailable(&cause),
    }
}

pub(super) async fn projects(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    malformed: Option<Extension<Malformed>>,
    asked: Option<Extension<Asked>>,
) -> Response {
    let list = match page(malformed, asked) {
        Ok(list) => list,
        Err(problem) => return respond(*problem),
    };
    let after = match list.from {
        Some(Position::Project(name)) => Some(name),
        _ => None,
    };
    match app.storage.projects(&caller.tenant, after, list.limit).await {
        Ok(slice) => {
            let next_cursor = slice.next.map(|position| list.binding.encode(&position));
            let projects = slice.rows.into_iter().map(ProjectBody::from).collect();
            Json(Projects { projects, next_cursor }).into_response()
        }
        Err(cause) => unavailable(&cause),
    }
}

impl From<Skill> for SkillBody {
    fn from(skill: Skill) -> Self {
        Self {
            text: skill.text,
            times_learnt: skill.times_learnt,
            first_learnt_at: time(skill.first_learnt_at),
            last_learnt_at: time(skill.last_learnt_at),
        }
    }
}

impl From<Project> for ProjectBody {
    fn from(project: Project) -> Self {
        Self { name: project.name, items: project.items, last_item_at: time(project.last_item_at) }
    }
}
