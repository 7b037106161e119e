//! Description of one route.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::{
    document::DocumentBuilder,
    schemas::{clean, plain},
};
use crate::{KINDS, ProblemDetails, access::role_for, api::NDJSON, request_bounds::is_bounded, stream::EVENT_STREAM};

/// Parameters of paths.
const PATH_PARAMETERS: [(&str, &str, &str, &str); 7] = [
    (
        "id",
        "Id of the session; of one that was not chosen a beginning that no other id has is enough.",
        "s-1",
        r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}$",
    ),
    ("node", "Name of the node.", "b", "^[A-Za-z0-9_-]{1,64}$"),
    ("name", "Name.", "main", "^[A-Za-z0-9._-]{1,64}$"),
    ("pid", "Pid of the process.", "4711", "^[1-9][0-9]{0,9}$"),
    ("prompt", "Offset of the event that the prompt was accepted with.", "00000000000000000021", "^[0-9]{1,20}$"),
    (
        "stream",
        "Id of the stream: that of the session that has it, or may get it.",
        "chat-7",
        r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}$",
    ),
    ("request", "Id of the permission request.", "permission-1", "^[^/]+$"),
];

/// Media type of problems.
const PROBLEM: &str = "application/problem+json";

/// Problems that every route may answer with.
const EVERY: [&str; 6] = ["unauthorized", "refused", "rate-limited", "request-timeout", "overloaded", "failed"];

/// Problems of routes with a body.
const WITH_BODY: [&str; 2] = ["usage", "body-too-large"];

/// Description of one route in the making.
pub(crate) struct RouteDescription<'a> {
    document: &'a mut DocumentBuilder,
    method: &'static str,
    path: &'static str,
    operation: Map<String, Value>,
    parameters: Vec<Value>,
    responses: BTreeMap<String, Value>,
    problems: BTreeSet<&'static str>,
}

impl<'a> RouteDescription<'a> {
    pub(super) fn new(
        document: &'a mut DocumentBuilder,
        tag: &'static str,
        module: &'static str,
        handler: &'static str,
        method: &'static str,
        path: &'static str,
    ) -> Self {
        let module = module.rsplit("::").next().unwrap_or(module);
        let mut operation = Map::new();
        operation.insert("tags".into(), json!([tag]));
        operation.insert("operationId".into(), operation_id(module, handler).into());
        let (parameters, responses, mut problems) = (path_parameters(path), BTreeMap::new(), BTreeSet::from(EVERY));
        if is_bounded(&Method::from_bytes(method.to_uppercase().as_bytes()).unwrap_or_default(), path) {
            problems.insert("deadline");
        }
        Self { document, method, path, operation, parameters, responses, problems }
    }

    /// Takes the text: its first paragraph is the summary.
    pub(crate) fn describe(&mut self, lines: &[&str]) {
        let text = plain(&lines.join("\n"));
        let (summary, more) = text.split_once("\n\n").unwrap_or((&text, ""));
        let method = Method::from_bytes(self.method.to_uppercase().as_bytes()).unwrap_or_default();
        let role = format!("Needs the role `{}`.", role_for(&method, self.path));
        let description = [more, &role].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n");
        self.operation.insert("summary".into(), summary.into());
        self.operation.insert("description".into(), description.into());
    }

    /// Takes a body. One that may be empty is not required.
    pub(crate) fn body<T: JsonSchema>(&mut self) {
        let required = self.document.schemas.request_root::<T>();
        let required =
            required["type"] != "object" || required["required"].as_array().is_some_and(|list| !list.is_empty());
        let schema = self.document.schemas.request::<T>();
        let body = json!({ "required": required, "content": { "application/json": { "schema": schema } } });
        self.operation.insert("requestBody".into(), body);
        self.problems.extend(WITH_BODY);
    }

    /// Takes a body of another service, or of a form.
    pub(crate) fn raw_body(&mut self) {
        let any = json!({ "schema": {} });
        let content =
            json!({ "application/json": any, "application/x-www-form-urlencoded": { "schema": { "type": "object" } } });
        self.operation.insert("requestBody".into(), json!({ "required": true, "content": content }));
        self.problems.extend(WITH_BODY);
    }

    /// Takes the query of a type.
    pub(crate) fn query<T: JsonSchema>(&mut self) {
        let mut schema = self.document.schemas.request_root::<T>();
        clean(&mut schema);
        let Some(properties) = schema["properties"].as_object() else { return };
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, property) in properties {
            let mut property = property.clone();
            let description = property.as_object_mut().and_then(|members| members.remove("description"));
            not_null(&mut property);
            self.parameters.push(json!({
                "name": name, "in": "query", "required": required.contains(&json!(name)),
                "description": description, "schema": property,
            }));
        }
        self.problems.insert("usage");
    }

    /// Takes a header.
    pub(crate) fn header(&mut self, name: &str, description: &str) {
        let schema = json!({ "type": "string" });
        self.parameters.push(json!({
            "name": name, "in": "header", "required": false, "description": description, "schema": schema,
        }));
    }

    /// Answers with JSON.
    pub(crate) fn json<T: JsonSchema>(&mut self, status: u16, description: &str) {
        let schema = self.document.schemas.answer::<T>();
        self.content(status, description, "application/json", json!({ "schema": schema }));
    }

    /// Answers with lines of JSON, one value of the type each.
    pub(crate) fn lines<T: JsonSchema>(&mut self, status: u16, description: &str) {
        let schema = self.document.schemas.answer::<T>();
        self.content(status, description, NDJSON, json!({ "schema": { "type": "string" }, "x-line-schema": schema }));
    }

    /// Answers with server-sent events, one value of the type each.
    pub(crate) fn server_sent<T: JsonSchema>(&mut self, status: u16, description: &str) {
        let schema = self.document.schemas.answer::<T>();
        self.content(
            status,
            description,
            EVENT_STREAM,
            json!({ "schema": { "type": "string" }, "x-data-schema": schema }),
        );
    }

    /// Answers with text of a media type.
    pub(crate) fn text(&mut self, status: u16, description: &str, media_type: &str) {
        self.content(status, description, media_type, json!({ "schema": { "type": "string" } }));
    }

    /// Answers without a body.
    pub(crate) fn empty(&mut self, status: u16, description: &str) {
        self.responses.insert(status.to_string(), json!({ "description": description }));
    }

    /// Names the next page of a list in the header `Link`.
    pub(crate) fn pages(&mut self) {
        let link = json!({
            "description": "Query of the next page, if there is one: `<?…&cursor=…>; rel=\"next\"`.",
            "schema": { "type": "string" },
        });
        if let Some(response) = self.responses.get_mut("200") {
            response["headers"] = json!({ "Link": link });
        }
    }

    /// Answers with problems of these kinds.
    pub(crate) fn problems(&mut self, kinds: &[&'static str]) {
        self.problems.extend(kinds);
    }

    fn content(&mut self, status: u16, description: &str, media_type: &str, content: Value) {
        let response =
            self.responses.entry(status.to_string()).or_insert_with(|| json!({ "description": description }));
        response["content"][media_type] = content;
    }

    /// Adds the route to the document.
    pub(crate) fn finish(mut self) {
        let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
        for (kind, _, status, _) in KINDS.iter().filter(|(kind, ..)| self.problems.contains(kind)) {
            by_status.entry(*status).or_default().push(kind);
        }
        let known = self.problems.iter().all(|kind| KINDS.iter().any(|(known, ..)| known == kind));
        assert!(known, "{} {} has a problem that no table has: {:?}", self.method, self.path, self.problems);
        for (status, kinds) in by_status {
            let (text, content) = self.problem_content(status, &kinds);
            let response = match self.responses.remove(&status.to_string()) {
                Some(mut response) => {
                    response["description"] =
                        format!("{} {text}", response["description"].as_str().unwrap_or_default()).into();
                    response["content"][PROBLEM] = content;
                    response
                }
                None => {
                    let name = format!("{status}_{}", kinds.join("_"));
                    let response = json!({ "description": text, "content": { PROBLEM: content } });
                    self.document.responses.insert(name.clone(), response);
                    json!({ "$ref": format!("#/components/responses/{name}") })
                }
            };
            self.responses.insert(status.to_string(), response);
        }
        self.operation.insert("parameters".into(), self.parameters.into());
        self.operation.insert("responses".into(), self.responses.into_iter().collect());
        self.document.add(self.method, self.path, self.operation);
    }

    fn problem_content(&mut self, status: u16, kinds: &[&str]) -> (String, Value) {
        let problem = self.document.schemas.answer::<ProblemDetails>();
        let titles = KINDS.iter().filter(|(kind, ..)| kinds.contains(kind));
        let titles: Vec<String> = titles.map(|(kind, title, ..)| format!("`{kind}`: {title}.")).collect();
        let narrowed = json!({ "properties": { "type": { "enum": kinds }, "status": { "const": status } } });
        (titles.join(" "), json!({ "schema": { "allOf": [problem, narrowed] } }))
    }
}

/// Returns the id of an operation: `sessionsKill`.
fn operation_id(module: &str, handler: &str) -> String {
    let handler = if handler == module { "" } else { handler };
    let words = module.split('_').chain(handler.split('_')).filter(|word| !word.is_empty());
    let mut id = String::new();
    for word in words {
        let (first, rest) = word.split_at(1);
        id.push_str(&if id.is_empty() { first.to_owned() } else { first.to_uppercase() });
        id.push_str(rest);
    }
    id
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
    let parameter = |name: &str| {
        let known = PATH_PARAMETERS.iter().find(|(known, ..)| *known == name);
        let (_, description, example, pattern) =
            known.copied().unwrap_or_else(|| panic!("{path}: {name} has no description"));
        json!({
            "name": name, "in": "path", "required": true, "description": description,
            "schema": { "type": "string", "pattern": pattern }, "example": example,
        })
    };
    names.map(parameter).collect()
}

/// Removes `null` from the types of a query's parameter: one that is not given is absent.
fn not_null(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            let kind = kind.clone();
            members.insert("type".into(), kind);
        }
    }
    if members.get("default").is_some_and(Value::is_null) {
        members.remove("default");
    }
}
