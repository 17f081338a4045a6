//! The same conversation gives the same bytes on every thread: no hash depends on an address or on chance.

use foldline::fold;
use foldline::{Conversation, FoldOptions, Ledger, Message, Meter, ModelTable, Part, Prices, Role};

fn render() -> Vec<Message<'static>> {
    let mut messages = vec![Message::text(Role::User, "Make it faster.")];
    for at in 0..80 {
        let call = Part::call(format!("c{at}"), "bash", format!(r#"{{"command":"cat src/file_{}.rs"}}"#, at % 9));
        let text: String = (0..60).map(|line| format!("let value_{at}_{line} = part_{}(input);\n", line % 7)).collect();
        messages.push(Message::new(Role::Assistant, vec![call]));
        messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), text)]));
    }
    let conversation = Conversation { messages, ..Conversation::default() };
    let table = ModelTable::builtin();
    let options =
        FoldOptions::new(Meter::for_model(table, Some("gpt-4o")), Prices::for_model(table, Some("gpt-4o")), 12_000);
    fold(&conversation, &options, &Ledger::default()).expect("the conversation fits the budget").messages(&conversation)
}

#[test]
fn every_thread_renders_the_same_messages() {
    let expected = render();
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(render)).collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), expected);
    }
}
