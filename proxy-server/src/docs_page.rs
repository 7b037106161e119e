//! Page of the OpenAPI document, for people: HTML without scripts, made from the document itself.

use std::{fmt::Write as _, sync::LazyLock};

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::plain_page::escape;

const STYLE: &str = include_str!("docs_page.css");

/// Page and its policy, made once.
static PAGE: LazyLock<(String, String)> = LazyLock::new(|| {
    let document = serde_json::from_str(crate::routes::DOCUMENT).unwrap_or_default();
    // Nothing is loaded or run, and no style but this one counts.
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        STANDARD.encode(Sha256::digest(STYLE))
    );
    (render(&document), policy)
});

/// Answers with the page.
pub(crate) fn response() -> Response {
    let (page, policy) = &*PAGE;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, page.as_str()).into_response()
}

fn render(document: &Value) -> String {
    let (mut menu, mut body) = (String::new(), String::new());
    for tag in list(&document["tags"]) {
        let name = text(&tag["name"]);
        let _ = write!(menu, "<h2>{0}</h2><ul>", escape(name));
        let _ = write!(body, "<h2>{}</h2>{}", escape(name), paragraphs(text(&tag["description"])));
        for (path, method, operation) in operations(document).filter(|(.., operation)| operation["tags"][0] == *name) {
            let (id, path) = (escape(text(&operation["operationId"])), escape(path));
            let _ = write!(menu, "<li><a href=\"#{id}\">{}<code>{path}</code></a></li>", badge(method));
            let _ = write!(
                body,
                "<section id=\"{id}\"><h3>{}<code>{path}</code></h3>{}",
                badge(method),
                describe_operation(document, operation)
            );
            body.push_str("</section>");
        }
        menu.push_str("</ul>");
    }
    menu.push_str("<h2>Types</h2><ul>");
    body.push_str("<h2>Types</h2>");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let name = escape(name);
        let _ = write!(menu, "<li><a href=\"#type-{name}\">{name}</a></li>");
        let _ = write!(body, "<section id=\"type-{name}\"><h3>{name}</h3>{}</section>", describe_type(schema));
    }
    menu.push_str("</ul>");
    let info = &document["info"];
    let (title, version) = (escape(text(&info["title"])), escape(text(&info["version"])));
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title} API</title><style>{STYLE}</style></head><body><nav>{menu}</nav><main><h1>{title} {version}</h1>{}\
         <p><a href=\"openapi.json\">openapi.json</a></p>{body}</main></body></html>",
        paragraphs(text(&info["description"]))
    )
}

fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    members(&document["paths"])
        .flat_map(|(path, item)| members(item).map(move |(method, operation)| (path, method, operation)))
}

fn describe_operation(document: &Value, operation: &Value) -> String {
    let mut html = paragraphs(text(&operation["summary"])) + &paragraphs(text(&operation["description"]));
    let parameters: Vec<&Value> = list(&operation["parameters"]).collect();
    if !parameters.is_empty() {
        html.push_str("<h4>Parameters</h4><table>");
        for parameter in parameters {
            let place = text(&parameter["in"]);
            let required = if parameter["required"] == true { ", required" } else { "" };
            let _ = write!(
                html,
                "<tr><td><code>{}</code><small>{place}{required}</small></td><td>{}</td><td>{}</td></tr>",
                escape(text(&parameter["name"])),
                type_of(&parameter["schema"]),
                inline(text(&parameter["description"]))
            );
        }
        html.push_str("</table>");
    }
    if let Some(body) = operation.get("requestBody") {
        let optional = if body["required"] == true { "" } else { " (may be empty)" };
        let schema = &body["content"]["application/json"]["schema"];
        let _ = write!(html, "<h4>Body</h4><p>{}{optional}</p>{}", type_of(schema), example_of(document, schema));
    }
    html.push_str("<h4>Answers</h4><table>");
    for (status, response) in members(&operation["responses"]) {
        let response = resolve(document, response);
        let bodies: Vec<String> = members(&response["content"])
            .map(|(media, content)| {
                let of = ["x-line-schema", "x-data-schema", "schema"].into_iter().find_map(|name| content.get(name));
                format!("<small>{}</small> {}", escape(media), of.map(type_of).unwrap_or_default())
            })
            .collect();
        let _ = write!(
            html,
            "<tr><td class=\"s{}\">{status}</td><td>{}</td><td>{}</td></tr>",
            status.get(..1).unwrap_or_default(),
            inline(text(&response["description"])),
            bodies.join("<br>")
        );
    }
    html + "</table>"
}

fn describe_type(schema: &Value) -> String {
    let mut html = paragraphs(text(&schema["description"]));
    if schema["properties"].is_object() {
        html.push_str("<table>");
        for (name, member) in members(&schema["properties"]) {
            let required = list(&schema["required"]).any(|required| required == name);
            let _ = write!(
                html,
                "<tr><td><code>{}</code>{}</td><td>{}</td><td>{}{}</td></tr>",
                escape(name),
                if required { "<small>required</small>" } else { "" },
                type_of(member),
                inline(text(&member["description"])),
                member
                    .get("default")
                    .map(|value| format!(" <small>Default: <code>{}</code></small>", escape(&value.to_string())))
                    .unwrap_or_default(),
            );
        }
        html.push_str("</table>");
    } else if schema["oneOf"].is_array() {
        html.push_str("<table>");
        for variant in list(&schema["oneOf"]) {
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td></tr>",
                type_of(variant),
                inline(text(&variant["description"]))
            );
        }
        html.push_str("</table>");
    } else {
        let _ = write!(html, "<p>{}</p>", type_of(schema));
    }
    html + &example(&schema["examples"][0])
}

/// Names a type, with links to those that have a section.
fn type_of(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = escape(target.rsplit('/').next().unwrap_or(target));
        return format!("<a href=\"#type-{name}\">{name}</a>");
    }
    if let Some(value) = schema.get("const") {
        return format!("<code>{}</code>", escape(&value.to_string()));
    }
    let alternatives =
        ["enum", "oneOf", "anyOf", "allOf"].into_iter().find_map(|kind| Some((kind, schema[kind].as_array()?)));
    if let Some((kind, all)) = alternatives {
        let one = |value: &Value| {
            if kind == "enum" { format!("<code>{}</code>", escape(&value.to_string())) } else { type_of(value) }
        };
        let names: Vec<String> = all.iter().map(one).filter(|name| !name.is_empty()).collect();
        return names.join(if kind == "enum" {
            ", "
        } else if kind == "allOf" {
            ""
        } else {
            " or "
        });
    }
    if schema["type"] == "array" {
        return format!("list of {}", type_of(&schema["items"]));
    }
    if schema["properties"].is_object() {
        let parts: Vec<String> = members(&schema["properties"])
            .map(|(name, member)| format!("<code>{}</code>: {}", escape(name), type_of(member)))
            .collect();
        // What narrows another type has a condition alone.
        return if schema.get("type").is_some() { format!("{{ {} }}", parts.join(", ")) } else { String::new() };
    }
    if schema["additionalProperties"].is_object() {
        return format!("names with {}", type_of(&schema["additionalProperties"]));
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["any JSON"],
    };
    let bounds: String = [("minimum", "≥"), ("maximum", "≤")]
        .into_iter()
        .filter(|_| {
            schema["format"].as_str().is_none_or(|format| !format.starts_with("uint") && !format.starts_with("int"))
        })
        .filter_map(|(name, sign)| Some(format!(" {sign} {}", schema.get(name)?)))
        .collect();
    let format =
        schema["format"].as_str().filter(|format| *format == "date-time").map(|_| " (time)").unwrap_or_default();
    escape(&(names.join(" or ") + &bounds + format))
}

fn example_of(document: &Value, schema: &Value) -> String {
    example(&resolve(document, schema)["examples"][0])
}

fn example(value: &Value) -> String {
    let pretty = serde_json::to_string_pretty(value).unwrap_or_default();
    if value.is_null() { String::new() } else { format!("<pre>{}</pre>", escape(&pretty)) }
}

/// Returns the target of a reference; a value that is none is its own.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().and_then(|target| document.pointer(target.strip_prefix('#')?));
    target.unwrap_or(value)
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn badge(method: &str) -> String {
    format!("<b class=\"{method}\">{}</b> ", method.to_uppercase())
}

fn paragraphs(text: &str) -> String {
    text.split("\n\n").filter(|text| !text.is_empty()).map(|text| format!("<p>{}</p>", inline(text))).collect()
}

/// Escapes text, with what is between backticks as code.
fn inline(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_has_each_route_and_type_once() {
        let document: Value = serde_json::from_str(crate::routes::DOCUMENT).expect("JSON");
        let page = render(&document);
        for (path, method, operation) in operations(&document) {
            let id = format!("<section id=\"{}\">", text(&operation["operationId"]));
            assert_eq!(page.matches(&id).count(), 1, "{method} {path}");
        }
        for (name, _) in members(&document["components"]["schemas"]) {
            assert_eq!(page.matches(&format!("<section id=\"type-{name}\">")).count(), 1, "{name}");
        }
        // Each link inside of the page has its target.
        for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split_once('"')) {
            assert!(page.contains(&format!("id=\"{}\"", target.0)), "{}", target.0);
        }
        assert!(!page.contains("<script") && !page.contains("http-equiv") && !page.contains("style=\""));
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(inline("a `<b>` & \"c\""), "a <code>&lt;b&gt;</code> &amp; &quot;c&quot;");
        assert_eq!(type_of(&json!({ "const": "<x>" })), "<code>&quot;&lt;x&gt;&quot;</code>");
        assert_eq!(type_of(&json!({ "type": ["string", "null"] })), "string or null");
    }
}
