//! The suite that every row of the table passes. The tests of a dialect's own fields are in its folder.

use crate::conversation::{Message, Part, PartId, Role};
use crate::testing::shape;
use crate::wire::dialect::DIALECTS;
use crate::wire::intercept::testing::{ScriptedOutput, ScriptedResponse, ScriptedStop, scripted_stream};
use crate::wire::{
    Dialect, EndpointPurpose, Format, OutgoingRequest, Request, RequestEdit, Response, ResponseExtent, StopReason,
    StreamReader, ToolSpec,
};

/// Returns the shape of a list of messages, and checks that parsing it changes no byte.
pub(crate) fn messages_shape(format: Format, messages: &str) -> Vec<String> {
    let body = format!("[{messages}]");
    let request = Request::parse(format, body.as_bytes()).unwrap();
    assert_eq!(request.splice(&[]).unwrap(), body.as_bytes());
    shape(request.conversation())
}

fn outgoing_body(format: Format) -> Vec<u8> {
    let messages = [
        Message::text(Role::User, "what is here?"),
        Message::new(Role::Assistant, vec![Part::text("Looking."), Part::call("c1", "ls", r#"{"path":"."}"#)]),
        Message::new(Role::Tool, vec![Part::result("c1", "a.rs")]),
        Message::text(Role::User, "go on"),
    ];
    let tools = [ToolSpec { name: "ls", description: "lists files", parameters: r#"{"type":"object"}"# }];
    let outgoing =
        OutgoingRequest { model: "m-1", system: "be brief", messages: &messages, tools: &tools, max_output_tokens: 9 };
    outgoing.to_body(format).unwrap()
}

#[test]
fn table_is_in_the_order_of_the_identifiers() {
    for (at, dialect) in DIALECTS.iter().enumerate() {
        assert_eq!(dialect.format as usize, at, "{}", dialect.name);
        assert_eq!(serde_json::to_value(dialect.format).unwrap(), dialect.name);
    }
}

#[test]
fn path_of_a_turn_leads_to_its_dialect() {
    for dialect in DIALECTS {
        let turn_path = dialect.turn_path("m-1");
        let path = if turn_path.starts_with('/') { turn_path } else { format!("/v1/{turn_path}") };
        let (found, endpoint) = Dialect::for_path(&path).unwrap();
        assert_eq!((found.name, endpoint.purpose), (dialect.name, EndpointPurpose::Turn));
        assert!(endpoint.model.is_none_or(|model| model == "m-1"), "{path}");
    }
}

/// The slashes of an inference profile's name were segments of the path.
#[test]
fn model_is_one_segment_of_a_turn_path() {
    let profile = "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.m-1:0";
    let path = Format::Converse.dialect().turn_path(profile);
    assert_eq!(path, "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Ainference-profile%2Feu.m-1%3A0/converse");
    assert!(Dialect::for_path(&path).is_some());
}

#[test]
fn documented_paths_lead_to_their_dialect() {
    for dialect in DIALECTS {
        assert!(dialect.documented_paths.iter().any(|(_, purpose)| *purpose == EndpointPurpose::Turn));
        for (path, purpose) in dialect.documented_paths {
            let (found, endpoint) = Dialect::for_path(path).unwrap();
            assert_eq!((found.format, endpoint.purpose), (dialect.format, *purpose), "{path}");
        }
    }
}

#[test]
fn own_error_is_read_as_an_error() {
    for dialect in DIALECTS {
        for status in [400, 401, 403, 404, 413, 429, 500, 503] {
            let body = dialect.error_body(status, "because \"so\"");
            let response = Response::parse(dialect.format, body.as_bytes()).unwrap();
            let error = response.error.unwrap();
            assert_eq!(error.message, "because \"so\"", "{body}");
            assert_eq!(error.kind.as_deref().unwrap_or_default(), dialect.error_kind(status), "{body}");
        }
    }
}

/// One round of an agent has the same texts, calls and results in every dialect; ids may be left out.
#[test]
fn round_of_an_agent_is_written_and_read() {
    for dialect in DIALECTS {
        let body = outgoing_body(dialect.format);
        let request = Request::parse(dialect.format, &body).unwrap();
        assert_eq!(Format::detect(&body), Some(dialect.format));
        assert_eq!(*request.splice(&[]).unwrap(), *body, "{}", dialect.name);
        let conversation = request.conversation();
        let texts: Vec<&str> =
            conversation.messages.iter().flat_map(|message| &message.parts).filter_map(Part::as_text).collect();
        let texts: Vec<&str> = texts.into_iter().filter(|text| *text != "be brief").collect();
        assert_eq!(texts, ["what is here?", "Looking.", "go on"], "{}", dialect.name);
        let call = conversation.messages.iter().flat_map(Message::calls).next().unwrap();
        assert_eq!((&*call.name, call.arguments.as_str()), ("ls", r#"{"path":"."}"#), "{}", dialect.name);
        let result = conversation.messages.iter().flat_map(Message::results).next().unwrap();
        assert_eq!((&result.call_id, result.only_text()), (&call.id, Some("a.rs")), "{}", dialect.name);
        assert_eq!(conversation.tools.len(), 1, "{}", dialect.name);
    }
}

/// The result of a call can be replaced, and the rest of the body keeps its bytes.
#[test]
fn result_is_replaced_in_place() {
    for dialect in DIALECTS {
        let body = String::from_utf8(outgoing_body(dialect.format)).unwrap();
        let request = Request::parse(dialect.format, body.as_bytes()).unwrap();
        let messages = &request.conversation().messages;
        let message = messages.iter().position(|message| message.results().next().is_some()).unwrap();
        let part = messages[message].parts.iter().position(|part| matches!(part, Part::ToolResult(_))).unwrap();
        let at = PartId::new(message, part);
        let edit = RequestEdit::Text { at, text: "[folded]".into() };
        let spliced = String::from_utf8(request.splice(&[edit]).unwrap().into_owned()).unwrap();
        assert_eq!(spliced, body.replace("a.rs", "[folded]"), "{}", dialect.name);
    }
}

/// A stream gives the same response whether it arrives whole or byte by byte.
#[test]
fn response_does_not_depend_on_how_it_arrives() {
    let outputs = vec![
        ScriptedOutput::Reasoning("hm", "seal"),
        ScriptedOutput::Text("Let me look."),
        ScriptedOutput::Call("c1", "ls", r#"{"path":"."}"#),
    ];
    let script = ScriptedResponse { id: "r1", outputs, stop: ScriptedStop::Calls, input: 100, output: 20 };
    for dialect in DIALECTS {
        let stream = scripted_stream(dialect.format, &script);
        let (mut whole, mut bytes) = (StreamReader::new(dialect.format), StreamReader::new(dialect.format));
        whole.push(&stream);
        stream.chunks(1).for_each(|byte| {
            bytes.push(byte);
        });
        let response = whole.finish();
        assert_eq!(response, bytes.finish(), "{}", dialect.name);
        assert_eq!((response.text().as_str(), response.extent), ("Let me look.", ResponseExtent::Complete));
        let calls: Vec<(&str, &str)> = response.calls().map(|call| (&*call.name, call.arguments.as_str())).collect();
        assert_eq!(calls, [("ls", r#"{"path":"."}"#)], "{}", dialect.name);
        assert_eq!(response.stop.as_ref().map(|stop| stop.reason), Some(StopReason::ToolUse), "{}", dialect.name);
        let usage = response.usage.unwrap();
        assert_eq!((usage.input, usage.output), (100, 20), "{}", dialect.name);
    }
}
