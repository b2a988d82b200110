// `outlive signal ID NAME [JSON]`: sends a signal to a job, which reads it with `run.waitForSignal`.
import { jsonArgument } from "../json-argument.ts";
import type { Register } from "../main.ts";

export const signalCommand: Register = (program, run) => {
  program
    .command("signal")
    .argument("<id>", "the job's id")
    .argument("<name>", "the name of the signal")
    .argument("[json]", "what is sent, as JSON, or - to read it from stdin (default: null)")
    .description("send a signal to an unfinished job, also before it waits for it")
    .option("--id <id>", "your own id of the signal: sending it again adds nothing")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [job, name, given = "null"] = command.args as [string, string, string?];
        const payload = await jsonArgument(given, "The payload", "outlive signal ID NAME - < payload.json");
        const { id } = command.opts<{ id?: string }>();
        const { created } = await (await attach()).signal(job, name, payload, id === undefined ? {} : { id });
        terminal.answer({ job, name, created }, () =>
          created
            ? `The signal ${name} to job ${job} is kept.`
            : `Nothing was added: a signal with the id ${id} was sent to job ${job} before.`,
        );
      }),
    );
};
