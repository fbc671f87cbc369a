//! The last words: the table, what goes on running, and how to look at it.

use anyhow::Result;
use postroom_tests::worker::Worker;

use crate::place;
use crate::report::Report;
use crate::servers::{Ground, QUEUE, Servers};
use crate::steps::Steps;

/// An order for whoever looks around: scheduled, so that there is time to ask where it is.
const SCHEDULED: &str = "select message_id from postroom.enqueue('orders', 'order.placed', '[1]', stream => 'you', delay => '1 minute')";

/// What is there to look at.
pub(crate) struct Guide<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) ground: &'a Ground,
    pub(crate) workers: [&'a Worker; 2],
}

impl Guide<'_> {
    /// Shows everything; answers whether the report is right.
    pub(crate) fn show(&self, steps: &Steps, report: &Report) -> Result<bool> {
        let right = report.is_right();
        let verdict = if right {
            steps.green("All is right: everything committed arrived, nothing else did, each customer's orders in order, one invoice for each.")
        } else {
            steps.red(&format!(
                "Something is wrong: see the marked lines.{}\nEverything stays up, so that you can look; logs: {}/servers/*/*log",
                report.samples(),
                place::folder()?.display()
            ))
        };
        steps.say(&format!("\n{}\n{verdict}\n", report.table(steps)))?;
        self.ground.write_environment()?;
        steps.say(&format!(
            "{}\n  source .demo/env                       # the commands below need it\n  \
             psql \"$DATABASE_URL\"                   # tables orders and postroom.outbox, view postroom.backlog\n  \
             postroom-worker stats --watch\n  \
             psql \"$DATABASE_URL\" -c \"{SCHEDULED}\"\n  \
             postroom-worker explain MESSAGE_ID     # the id that the line above prints; see queue {QUEUE} a minute later\n  \
             RabbitMQ: http://127.0.0.1:{}/  login postroom, password {}",
            steps.bold("Look around"),
            self.servers.rabbit.management_port(),
            self.servers.rabbit.password()
        ))?;
        for worker in self.workers {
            steps.say(&format!(
                "  worker {}: http://127.0.0.1:{}/stats and /metrics",
                worker.pid(),
                worker.port()
            ))?;
        }
        steps.say(&format!(
            "\n{}  PostgreSQL, RabbitMQ and two workers, until you run {}; it also removes .demo.",
            steps.bold("Still running"),
            steps.bold("make demo-down")
        ))?;
        Ok(right)
    }
}
