//! Plan of the agent: its list of tasks, from any of the tools that change it.

use ipc_protocol::{Event, PlanEntry};
use serde_json::Value;

use crate::kit::bounds::{MAX_ID, words};

/// Most steps of a plan.
const MAX_STEPS: usize = 256;

#[derive(Debug)]
struct TodoStep {
    /// Number that the agent gives the step; empty if the agent sends the complete list.
    id: String,
    content: String,
    status: String,
}

/// Steps so far.
#[derive(Debug, Default)]
pub(super) struct TodoPlan {
    steps: Vec<TodoStep>,
}

impl TodoPlan {
    /// Handles a tool call with its complete input. Returns the new plan if the call is about the plan.
    pub(super) fn called(&mut self, tool: &str, input: &Value) -> Option<Event> {
        match tool {
            "TodoWrite" => {
                let todos = input.get("todos")?.as_array()?;
                self.steps = todos.iter().take(MAX_STEPS).filter_map(|todo| step(todo, "content")).collect();
                Some(self.event())
            }
            // The plan to be approved, as one step.
            "ExitPlanMode" => Some(whole(input.get("plan")?.as_str()?)),
            _ => None,
        }
    }

    /// Handles the end of a tool call. Returns the new plan if the call is about the plan. `result` is the agent's result for programs.
    pub(super) fn ended(&mut self, tool: &str, input: &Value, result: &Value) -> Option<Event> {
        match tool {
            "TaskCreate" => {
                let task = step(result.get("task")?, "subject")?;
                if self.steps.len() >= MAX_STEPS || self.steps.iter().any(|step| step.id == task.id) {
                    return None;
                }
                self.steps.push(task);
            }
            "TaskUpdate" => {
                if result.get("success").and_then(Value::as_bool) == Some(false) {
                    return None;
                }
                let id = id(input.get("taskId")?)?;
                let at = self.steps.iter().position(|step| step.id == id)?;
                let text = |key: &str| input.get(key).and_then(Value::as_str).map(words);
                match text("status") {
                    Some(status) if status == "deleted" => drop(self.steps.remove(at)),
                    Some(status) => self.steps[at].status = status,
                    None => {}
                }
                if let (Some(subject), Some(step)) = (text("subject"), self.steps.get_mut(at)) {
                    step.content = subject;
                }
            }
            "TaskList" => {
                let tasks = result.get("tasks")?.as_array()?;
                self.steps = tasks.iter().take(MAX_STEPS).filter_map(|task| step(task, "subject")).collect();
            }
            "ExitPlanMode" => return Some(whole(result.get("plan")?.as_str()?)),
            _ => return None,
        }
        Some(self.event())
    }

    fn event(&self) -> Event {
        let entry =
            |step: &TodoStep| PlanEntry { content: step.content.clone(), status: step.status.clone(), priority: None };
        Event::Plan { entries: self.steps.iter().map(entry).collect() }
    }
}

/// Makes a plan of one step from a text.
fn whole(text: &str) -> Event {
    let entry = PlanEntry { content: text.to_owned(), status: "pending".to_owned(), priority: None };
    Event::Plan { entries: vec![entry] }
}

fn step(value: &Value, content: &str) -> Option<TodoStep> {
    let status = value.get("status").and_then(Value::as_str).unwrap_or("pending");
    Some(TodoStep {
        id: value.get("id").map_or_else(|| Some(String::new()), id)?,
        content: words(value.get(content)?.as_str()?),
        status: words(status),
    })
}

fn id(value: &Value) -> Option<String> {
    let id = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    (id.len() <= MAX_ID).then_some(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(event: Option<Event>) -> Vec<(String, String)> {
        match event {
            Some(Event::Plan { entries }) => entries.into_iter().map(|e| (e.content, e.status)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_list_of_todos_is_the_plan() {
        let todos = json!({ "todos": [{ "content": "a", "status": "in_progress" }, { "content": "b" }, { "no": 1 }] });
        let told = told(TodoPlan::default().called("TodoWrite", &todos));
        assert_eq!(told, [("a".into(), "in_progress".into()), ("b".into(), "pending".into())]);
    }

    #[test]
    fn tasks_come_one_by_one() {
        let mut plan = TodoPlan::default();
        plan.ended("TaskCreate", &json!({}), &json!({ "task": { "id": "1", "subject": "do" } }));
        let two = plan.ended("TaskCreate", &json!({}), &json!({ "task": { "id": 2, "subject": "rest" } }));
        assert_eq!(told(two).len(), 2);
        let begun = plan.ended("TaskUpdate", &json!({ "taskId": "1", "status": "in_progress" }), &json!({}));
        assert_eq!(told(begun)[0], ("do".into(), "in_progress".into()));
        let gone = plan.ended("TaskUpdate", &json!({ "taskId": 2, "status": "deleted" }), &json!({ "success": true }));
        assert_eq!(told(gone).len(), 1);
        assert_eq!(plan.ended("TaskUpdate", &json!({ "taskId": "7" }), &json!({})), None);
        assert_eq!(plan.ended("Bash", &json!({}), &json!({ "tasks": [] })), None);
    }
}
