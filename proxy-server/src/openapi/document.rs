//! Document in the making.

use serde_json::{Map, Value, json};

use super::{route::RouteDescription, schemas::SchemaSet};

/// Groups of routes, in the order of the page.
const TAGS: [(&str, &str); 14] = [
    ("Sessions", "Sessions: start, list, describe, kill, forget."),
    ("Prompts", "Prompts, and what steers or ends their turns."),
    ("Permissions", "Permission requests of agents, and their answers."),
    ("Events", "Events of one session and of all: as JSON lines, as server-sent events, or a page at a time."),
    ("WebSockets", "WebSockets for renderers: events, and requests with their replies, on one connection."),
    ("Terminals", "Terminals of sessions, and shells beside their agents."),
    ("Workspaces", "Trees of their own that agents work in: list, compare, apply, drop."),
    ("Webhooks", "Webhooks of other services, those that the server sends, and the links in them."),
    ("Lifecycle", "Sessions that outlive their processes: suspend, resume, hand over, take back."),
    ("Records", "Records of sessions, living and past."),
    ("Instances", "Instances of an agent's own server, one for each model configuration."),
    ("Fleet", "Nodes that answer for each other's sessions, and who has which session."),
    ("Configuration", "Agents, profiles and model configurations."),
    ("Server", "The server itself."),
];

const DESCRIPTION: &str = "Sessions of AI coding agents, each in processes of its own.\n\n\
    Over TCP each request needs a token, as a bearer token or in the cookie of a page that has logged in; on the local socket none. \
    Every error is a problem object (RFC 9457). An empty body counts as `{}`; an unknown member of a body is an error. \
    Skip members of answers that you do not know: a new release may add some.";

/// Document in the making.
pub(crate) struct DocumentBuilder {
    pub(super) schemas: SchemaSet,
    pub(super) responses: Map<String, Value>,
    paths: Map<String, Value>,
}

impl DocumentBuilder {
    /// Begins without routes.
    pub(crate) fn new() -> Self {
        Self { schemas: SchemaSet::new(), responses: Map::new(), paths: Map::new() }
    }

    /// Begins the description of a route.
    pub(crate) fn route(
        &mut self,
        tag: &'static str,
        module: &'static str,
        handler: &'static str,
        method: &'static str,
        path: &'static str,
    ) -> RouteDescription<'_> {
        assert!(TAGS.iter().any(|(known, _)| *known == tag), "{tag} is no group of routes");
        RouteDescription::new(self, tag, module, handler, method, path)
    }

    pub(super) fn add(&mut self, method: &str, path: &str, operation: Map<String, Value>) {
        let item = self.paths.entry(path).or_insert_with(|| json!({}));
        assert!(item.get(method).is_none(), "{method} {path} is there twice");
        item[method] = Value::Object(operation);
    }

    /// Completes the document.
    pub(crate) fn finish(self) -> Value {
        let Self { schemas, mut responses, mut paths } = self;
        paths.sort_keys();
        responses.sort_keys();
        let tags: Vec<Value> = TAGS.iter().map(|(name, text)| json!({ "name": name, "description": text })).collect();
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "agent-proxy",
                "version": env!("CARGO_PKG_VERSION"),
                "description": DESCRIPTION,
                "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
            },
            "servers": [{ "url": "/", "description": "The server that this document comes from." }],
            "tags": tags,
            "security": [{ "bearer": [] }, { "cookie": [] }],
            "paths": paths,
            "components": {
                "securitySchemes": {
                    "bearer": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "Token of `agent-proxy tokens create`, or the first one, in the file `token` of the configuration directory.",
                    },
                    "cookie": {
                        "type": "apiKey",
                        "in": "cookie",
                        "name": "agent_proxy_login",
                        "description": "Cookie of a page that has logged in by a link; `_` and the port follow its name.",
                    },
                },
                "responses": responses,
                "schemas": schemas.finish(),
            },
        })
    }
}
