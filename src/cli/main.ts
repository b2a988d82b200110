// The command line: one file per command in commands/, each with a `register`. It uses the engine's public face only.
import { Command, CommanderError } from "commander";
import { OutliveError } from "../core/errors.ts";
import { VERSION } from "../version.ts";
import { COMMANDS } from "./commands/index.ts";
import { type Context, type GlobalOptions, makeContext } from "./context.ts";
import { ExitCode, exitCodeOf } from "./exit-codes.ts";
import { type Streams, terminal } from "./terminal.ts";

/** What a command does. Answers an exit code; nothing means 0. */
export type Action = (context: Context, command: Command) => Promise<number | void>;

/** Adds a command to the program. `run` wraps its action: context, errors, exit code. */
export type Register = (program: Command, run: (action: Action) => (...given: unknown[]) => Promise<void>) => void;

/** Runs the CLI and answers its exit code. */
export async function main(
  argv: readonly string[],
  streams: Streams = { stdout: process.stdout, stderr: process.stderr },
): Promise<number> {
  let code: number = ExitCode.ok;
  const program = new Command("outlive")
    .description("Work outlives its workers.")
    .version(VERSION)
    .option("--json", "machine-readable output: one JSON document")
    .option(
      "--config <file>",
      "the configuration file (default: outlive.config.ts, .js, .mjs or outlive.yaml in this folder)",
    )
    .option("--store <url>", 'the store, for instance "sqlite:./jobs.db"; wins over file and environment')
    .showSuggestionAfterError()
    .configureHelp({ showGlobalOptions: true })
    .exitOverride()
    .configureOutput({
      writeOut: (text) => void streams.stdout.write(text),
      writeErr: (text) => void streams.stderr.write(text),
    });
  for (const register of COMMANDS) {
    register(program, (action) => async (...given) => {
      const command = given.at(-1) as Command;
      const options = command.optsWithGlobals<GlobalOptions>();
      const context = makeContext(terminal(streams, options.json === true), options);
      try {
        code = (await action(context, command)) ?? ExitCode.ok;
      } catch (thrown) {
        code = exitCodeOf(thrown);
        tellError(thrown, options.json === true, streams);
      } finally {
        await context.close();
      }
    });
  }
  try {
    await program.parseAsync(argv, { from: "user" });
  } catch (thrown) {
    if (!(thrown instanceof CommanderError)) throw thrown;
    return thrown.exitCode === 0 ? ExitCode.ok : ExitCode.usage;
  }
  return code;
}

function tellError(thrown: unknown, json: boolean, { stdout, stderr }: Streams): void {
  const known = thrown instanceof OutliveError;
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  if (json)
    stdout.write(
      `${JSON.stringify({ error: { code: known ? thrown.code : "UNEXPECTED", message, ...(known ? { hint: thrown.hint, data: thrown.data } : {}) } })}\n`,
    );
  else stderr.write(`outlive: ${known ? message : ((thrown as Error)?.stack ?? message)}\n`);
}
