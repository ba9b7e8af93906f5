//! The projects and resources there are, and what their domains allow.

use std::collections::HashMap;
use std::time::Duration;

use crate::fleet::{DomainId, ProjectId, ResourceId};

/// What a domain allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainPolicy {
    /// The longest session, in whole seconds.
    pub max_session_ttl: Duration,
}

/// Why a session leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// There is no such project.
    #[error("there is no such project")]
    ProjectNotFound,
    /// The project has no such resource.
    #[error("the project has no such resource")]
    ResourceNotFound,
}

/// All domains, projects and resources.
#[derive(Debug, Default)]
pub struct Registry {
    domains: HashMap<DomainId, DomainPolicy>,
    projects: HashMap<ProjectId, DomainId>,
    resources: HashMap<ResourceId, ProjectId>,
}

impl Registry {
    /// Adds a domain; false if it is there already.
    pub fn add_domain(&mut self, domain: DomainId, policy: DomainPolicy) -> bool {
        self.domains.insert(domain, policy).is_none()
    }

    /// Adds a project; false if it is there already.
    pub fn add_project(&mut self, project: ProjectId, domain: DomainId) -> bool {
        self.projects.insert(project, domain).is_none()
    }

    /// Adds a resource; false if it is there already.
    pub fn add_resource(&mut self, resource: ResourceId, project: ProjectId) -> bool {
        self.resources.insert(resource, project).is_none()
    }

    /// Whether there is this domain.
    pub fn has_domain(&self, domain: DomainId) -> bool {
        self.domains.contains_key(&domain)
    }

    /// Whether there is this project.
    pub fn has_project(&self, project: ProjectId) -> bool {
        self.projects.contains_key(&project)
    }

    /// The domain of a project, and what it allows.
    ///
    /// # Errors
    /// [`RegistryError::ProjectNotFound`].
    pub fn project(&self, project: ProjectId) -> Result<(DomainId, DomainPolicy), RegistryError> {
        let domain = self.projects.get(&project).ok_or(RegistryError::ProjectNotFound)?;
        let policy = self.domains.get(domain).ok_or(RegistryError::ProjectNotFound)?;
        Ok((*domain, *policy))
    }

    /// Whether a resource is the project's.
    ///
    /// # Errors
    /// [`RegistryError::ResourceNotFound`].
    pub fn resource_of(&self, resource: ResourceId, project: ProjectId) -> Result<(), RegistryError> {
        let found = self.resources.get(&resource) == Some(&project);
        if found { Ok(()) } else { Err(RegistryError::ResourceNotFound) }
    }
}
