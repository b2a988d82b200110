// What a person sends: `outlive enqueue KIND JSON`, one job, and `outlive signal ID NAME [JSON]`. If the modules of the configuration export the
// kind, the job is made as a program makes it: the input through the schema, with its keys. Otherwise by the name alone, which a kind with
// limits refuses.
import { Option } from "commander";
import { type EnqueueOptions, MAX_PRIORITY } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Enqueued } from "../../job/job.ts";
import type { Duration } from "../../job/time.ts";
import { connect } from "../../engine/connect.ts";
import { byOf, instant, jsonArgument, wholeNumber, withBy } from "../context.ts";
import { noSuchKind } from "../lookup.ts";
import type { Register } from "../main.ts";
import { findJob } from "../supervisor/job-modules.ts";

interface Flags {
  readonly priority?: number;
  readonly delay?: Duration;
  readonly expires?: Duration;
  readonly runAt?: Date;
  readonly dedupeKey?: string;
  readonly dedupeThen?: "keep" | "replace" | "rerun";
  readonly id?: string;
}

export const enqueueCommand: Register = (program, run) => {
  program
    .command("enqueue")
    .argument("<kind>", "the kind of the job")
    .argument("<json>", "its input as JSON, or - to read it from stdin")
    .description("add a job, and print its id")
    .option("--priority <number>", "higher runs first (default 0)", wholeNumber(-MAX_PRIORITY, MAX_PRIORITY))
    .option("--delay <duration>", 'run it this much later: "30s", "5m"')
    .option("--run-at <instant>", "run it at this ISO 8601 instant", instant)
    .option("--expires <duration>", 'cancel it if no attempt has begun this long after it was due: "1h"')
    .option("--dedupe-key <key>", "add nothing while an unfinished job of the kind holds this key")
    .addOption(
      new Option(
        "--dedupe-then <what>",
        "what to do with the job that holds the key: keep it; replace its input if it has not begun; rerun: as replace, or again after it has ended",
      ).choices(["keep", "replace", "rerun"]),
    )
    .option("--id <id>", "your own id: enqueueing it again adds nothing")
    .action(
      run(async ({ terminal, attach, config, mayChange }, command) => {
        const [kind, given] = command.args as [string, string];
        const input = await jsonArgument(given, "The input", "outlive enqueue KIND - < input.json");
        const flags = command.opts<Flags>();
        const options = optionsOf(flags);
        const engine = await attach();
        const { jobs, store, engine: settings } = await config();
        const contract = await findJob({ base: process.cwd(), patterns: jobs }, kind);
        const enqueue = async (): Promise<Enqueued> => {
          if (contract === null) return engine.operator.enqueueByName(kind, input, options);
          mayChange("enqueue a job");
          // Declares the kind, as a program does.
          await using client = await connect(store, { ...settings, jobs: [contract] as never });
          return await client.enqueue(contract as never, input as never, options);
        };
        const enqueued = await enqueue().catch(async (thrown: unknown) => {
          if (thrown instanceof OutliveError && thrown.code === ErrorCode.kindUnknown)
            throw noSuchKind(
              kind,
              (await engine.counts()).map((counts) => counts.kind),
            );
          throw thrown;
        });
        terminal.answer(enqueued, () => enqueuedText(enqueued, flags));
      }),
    );
};

function optionsOf({ dedupeKey, dedupeThen, ...others }: Flags): EnqueueOptions {
  if (dedupeThen === undefined) return { ...others, ...(dedupeKey !== undefined && { dedupeKey }) };
  if (dedupeKey !== undefined) return { ...others, dedupe: { key: dedupeKey, then: dedupeThen } };
  throw new OutliveError(
    ErrorCode.optionInvalid,
    "--dedupe-then was given without --dedupe-key.",
    "Nothing was enqueued. Add --dedupe-key KEY.",
  );
}

function enqueuedText({ id, created, became }: Enqueued, { dedupeKey }: Flags): string {
  if (created) return id;
  const what =
    became === "replaced"
      ? "No job was added: this job holds the dedupe key and had not begun, so it has the new input now."
      : became === "rerun"
        ? "No job was added yet: this job holds the dedupe key and has begun. The new input runs after it has ended."
        : `Nothing was added: this job holds the ${dedupeKey === undefined ? "id" : "id or dedupe key"} already.`;
  return `${id}\n${what} See it: outlive job ${id}`;
}

// A handler reads the signal with `run.waitForSignal`.

export const signalCommand: Register = (program, run) => {
  const signal = program
    .command("signal")
    .argument("<id>", "the job's id")
    .argument("<name>", "the name of the signal")
    .argument("[json]", "what is sent, as JSON, or - to read it from stdin (default: null)");
  withBy(signal)
    .description("send a signal to an unfinished job, even before it waits for it")
    .option("--id <id>", "your own id of the signal: sending it again adds nothing")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [job, name, given = "null"] = command.args as [string, string, string?];
        const payload = await jsonArgument(given, "The payload", "outlive signal ID NAME - < payload.json");
        const { id } = command.opts<{ id?: string }>();
        const options = { ...byOf(command), ...(id !== undefined && { id }) };
        const { created } = await (await attach()).signal(job, name, payload, options);
        terminal.answer({ job, name, created }, () =>
          created
            ? `The signal ${name} was stored for job ${job}.`
            : `Nothing was added: a signal with the id ${id} was sent to job ${job} before.`,
        );
      }),
    );
};
