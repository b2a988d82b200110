// The command line: the list of commands (one file per subject in commands/, each command with a `register`), their context, errors and
// exit codes, and the completion script that is made from them. It uses the engine's public face only.
import { Command, CommanderError } from "commander";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { VERSION } from "../platform/identity.ts";
import { batchesCommand } from "./commands/batches.ts";
import { collectionsCommand } from "./commands/collections.ts";
import { backupCommand, checkCommand } from "./commands/check.ts";
import { demoCommand, tortureCommand } from "./commands/demo.ts";
import { enqueueCommand, signalCommand } from "./commands/enqueue.ts";
import { initCommand, migrateCommand } from "./commands/migrate.ts";
import { jobCommand, whyCommand, jobsCommand } from "./commands/job.ts";
import { limitCommand, limitsCommand } from "./commands/limit.ts";
import { auditCommand, pauseCommand, quarantineCommand, retryCommand } from "./commands/operate.ts";
import { incidentsCommand } from "./commands/incidents.ts";
import { recoverCommand, recoveryCommand } from "./commands/recover.ts";
import { schedulesCommand } from "./commands/schedules.ts";
import { requestsCommand } from "./commands/requests.ts";
import { submitCommand } from "./commands/submit.ts";
import { metricsCommand, statusCommand, workersCommand } from "./commands/status.ts";
import { workCommand } from "./commands/work.ts";
import { type Context, type GlobalOptions, makeContext } from "./context.ts";
import { ExitCode, exitCodeOf, type Streams, terminal } from "./terminal.ts";

/** What a command does. Returns an exit code; nothing means 0. */
type Action = (context: Context, command: Command) => Promise<number | void>;

/** Adds a command to the program. `run` wraps its action: context, errors, exit code. */
export type Register = (program: Command, run: (action: Action) => (...given: unknown[]) => Promise<void>) => void;

/** The headings of `outlive --help`, and what stands under each. */
const GROUPS: Readonly<Record<string, readonly string[]>> = {
  "Start and run:": ["init", "work", "demo"],
  "Inspect:": ["status", "jobs", "job", "why", "workers", "incidents", "incident", "recovery", "audit", "metrics"],
  "Change:": [
    "enqueue",
    "signal",
    "retry",
    "cancel",
    "promote",
    "remove",
    "quarantine",
    "pause",
    "resume",
    "limit",
    "limits",
    "recover",
  ],
  "Batches, requests, collections and schedules:": [
    "submit",
    "batches",
    "batch",
    "abort",
    "requests",
    "collections",
    "collection",
    "put",
    "abandon",
    "parked",
    "schedules",
  ],
  "The store:": ["check", "backup", "migrate", "torture"],
};

function group(program: Command): void {
  program.addHelpCommand(
    new Command("help").argument("[command]").description("show the help of a command").helpGroup("Other:"),
  );
  for (const [heading, names] of Object.entries(GROUPS))
    for (const command of program.commands) if (names.includes(command.name())) command.helpGroup(heading);
}

/** Without its options, and only as many arguments as leave room for the description. */
function subcommandTerm(command: Command): string {
  const words = [
    command.name(),
    ...command.registeredArguments.map((one) => (one.required ? `<${one.name()}>` : `[${one.name()}]`)),
  ];
  const all = words.join(" ");
  return all.length <= 24 ? all : `${words.slice(0, 2).join(" ")} ...`;
}

/** Runs the CLI and returns its exit code. */
export async function main(
  argv: readonly string[],
  streams: Streams = { stdout: process.stdout, stderr: process.stderr },
): Promise<number> {
  let code: number = ExitCode.ok;
  // Known before commander has understood anything: its own usage errors are printed as JSON, too.
  const end = argv.indexOf("--");
  const json = (end < 0 ? argv : argv.slice(0, end)).includes("--json");
  const program = new Command("outlive")
    .description("Work outlives its workers.")
    .version(VERSION)
    .option("--json", "machine-readable output: one JSON document")
    .option(
      "--config <file>",
      "the configuration file (default: outlive.config.ts, .mts, .mjs, .js, or outlive.yaml, .yml in this folder)",
    )
    .option("--store <url>", 'the store, for instance "sqlite:./jobs.db"; wins over file and environment')
    .option("--read-only", "change nothing, and show what can be read, even from a damaged store")
    .showSuggestionAfterError()
    // Wraps even a narrow column of descriptions: the terminal would break lines in the middle of words.
    .configureHelp({ showGlobalOptions: true, minWidthToWrap: 20, subcommandTerm })
    .commandsGroup("Other:")
    .exitOverride()
    .configureOutput({
      getOutHelpWidth: () => (streams.stdout.isTTY ? streams.stdout.columns : 100),
      writeOut: (text) => void streams.stdout.write(text),
      writeErr: (text) => void (json || streams.stderr.write(text)),
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
        printError(thrown, options.json === true, streams);
      } finally {
        await context.close();
      }
    });
  }
  group(program);
  try {
    await program.parseAsync(argv, { from: "user" });
  } catch (thrown) {
    if (!(thrown instanceof CommanderError)) throw thrown;
    if (thrown.exitCode === 0) return ExitCode.ok;
    if (json) streams.stdout.write(`${JSON.stringify({ error: usageError(thrown) })}\n`);
    return ExitCode.usage;
  }
  return code;
}

/** Commander writes: "error: unknown command 'stat'", and on a second line "(Did you mean status?)". */
function usageError({ code, message }: CommanderError): { code: "USAGE"; message: string; hint: string } {
  const seeHelp = "See `outlive --help`, or `outlive COMMAND --help`.";
  if (code.startsWith("commander.help")) return { code: "USAGE", message: "A command is missing.", hint: seeHelp };
  const [what = "", ...suggestion] = message.replace(/^error: /, "").split("\n");
  return { code: "USAGE", message: what, hint: suggestion.join(" ").replace(/^\((.*)\)$/, "$1") || seeHelp };
}

function printError(thrown: unknown, json: boolean, { stdout, stderr }: Streams): void {
  const known = thrown instanceof OutliveError;
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  if (json) {
    const error = known
      ? { code: thrown.code, message: thrown.what, hint: thrown.hint, data: thrown.data }
      : { code: "UNEXPECTED", message };
    stdout.write(`${JSON.stringify({ error })}\n`);
  } else if (known) stderr.write(`outlive: ${thrown.what}\n${thrown.hint === "" ? "" : `  ${thrown.hint}\n`}`);
  else stderr.write(`outlive: ${(thrown as Error)?.stack ?? message}\n`);
}

// `outlive completion SHELL`: a script that completes commands and options, made from the commands themselves.

const completionCommand: Register = (program, run) => {
  program
    .command("completion")
    .argument("<shell>", "bash, zsh or fish")
    .description("shell completion; for instance: source <(outlive completion bash)")
    .action(
      run(async ({ terminal }, command) => {
        const shell = command.args[0]!;
        const words = wordsOf(program);
        const script = {
          bash: () => bash(words),
          zsh: () => `autoload -U +X bashcompinit && bashcompinit\n${bash(words)}`,
          fish: () => fish(words),
        }[shell];
        if (!script)
          throw new OutliveError(
            ErrorCode.optionInvalid,
            `There is no completion for ${shell}.`,
            "Use bash, zsh or fish.",
            { shell },
          );
        terminal.answer({ shell, script: script() }, script);
      }),
    );
};

/** What may follow each command ("" is the program itself). */
function wordsOf(program: Command): ReadonlyMap<string, readonly string[]> {
  const words = new Map<string, readonly string[]>();
  const flags = (command: Command): string[] => command.options.flatMap(({ long }) => (long ? [long] : []));
  const walk = (command: Command, path: readonly string[]): void => {
    const names = command.commands.flatMap((child) => [child.name(), ...child.aliases()]);
    words.set(path.join(" "), [...names, ...flags(command), ...(path.length > 0 ? flags(program) : []), "--help"]);
    for (const child of command.commands) walk(child, [...path, child.name()]);
  };
  walk(program, []);
  return words;
}

function bash(words: ReadonlyMap<string, readonly string[]>): string {
  const cases = [...words].map(([path, next]) => `    "${path}") words="${next.join(" ")}" ;;`);
  return `_outlive() {
  local path="" word words="" current="\${COMP_WORDS[COMP_CWORD]}"
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ "$word" == -* ]] || path="\${path:+$path }$word"
  done
  while :; do
    case "$path" in
${cases.map((line) => `  ${line}`).join("\n")}
    esac
    [[ -n "$words" || -z "$path" ]] && break
    [[ "$path" == *" "* ]] && path="\${path% *}" || path=""
  done
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _outlive outlive
`;
}

function fish(words: ReadonlyMap<string, readonly string[]>): string {
  const lines = [...words].flatMap(([path, next]) => {
    const condition = path === "" ? "__fish_use_subcommand" : `__fish_seen_subcommand_from ${path.split(" ").at(-1)}`;
    return next.map((word) => {
      const what = word.startsWith("--") ? `-l ${word.slice(2)}` : `-f -a ${word}`;
      return `complete -c outlive -n "${condition}" ${what}`;
    });
  });
  return `${lines.join("\n")}\n`;
}

// The commands, in the order in which the help shows them.

export const COMMANDS: readonly Register[] = [
  initCommand,
  workCommand,
  statusCommand,
  enqueueCommand,
  jobsCommand,
  jobCommand,
  whyCommand,
  signalCommand,
  retryCommand,
  quarantineCommand,
  pauseCommand,
  auditCommand,
  limitCommand,
  limitsCommand,
  schedulesCommand,
  batchesCommand,
  requestsCommand,
  collectionsCommand,
  submitCommand,
  workersCommand,
  recoverCommand,
  incidentsCommand,
  recoveryCommand,
  checkCommand,
  backupCommand,
  migrateCommand,
  metricsCommand,
  demoCommand,
  tortureCommand,
  completionCommand,
];
