// `outlive retry` and `outlive cancel`: of jobs by their ids, or of all that a filter finds.
import type { Command } from "commander";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { JobState } from "../../core/job.ts";
import { type FilterFlags, filterOf, withFilters } from "../flags.ts";
import type { Register } from "../main.ts";
import { changeFound, type ChangeKind, changeNamed } from "../mass-change.ts";
import type { Context } from "../context.ts";

const RETRY: ChangeKind = {
  name: "retry",
  done: "queued again",
  states: ["dead"],
  apply: (engine, id) => engine.retry(id),
};

const CANCEL: ChangeKind = {
  name: "cancel",
  done: "cancelled",
  states: ["queued", "running"],
  apply: (engine, id) => engine.cancel(id),
};

export const register: Register = (program, run) => {
  command(program, "retry", ["dead", "cancelled", "quarantined", "succeeded"])
    .description("queue finished jobs again, with their counters at zero and their steps kept")
    .option("--all", "all dead jobs, or all in the state given by --state")
    .action(run((context, given) => change(context, given, RETRY)));
  command(program, "cancel", ["queued", "running"])
    .description("cancel queued jobs now, and ask running ones to end")
    .option("--all", "all queued and running jobs")
    .action(run((context, given) => change(context, given, CANCEL)));
};

function command(program: Command, name: string, states: readonly JobState[]): Command {
  const made = program.command(name).argument("[ids...]", "the ids of the jobs");
  return withFilters(made, states).option("--yes", "really do it to all that the filter finds");
}

/** Ids or a filter, never both: somebody who gives both means something that this does not do. */
export async function change({ terminal, attach }: Context, command: Command, kind: ChangeKind): Promise<number> {
  const flags = command.opts<FilterFlags & { all?: boolean; yes?: boolean }>();
  const filter = filterOf(flags, Date.now());
  const filtered = flags.all === true || Object.keys(filter).length > 0;
  const ids = command.args;
  if (ids.length > 0 === filtered)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      filtered ? "Ids and a filter were given together." : `Nothing says which jobs to ${kind.name}.`,
      `Give ids, or a filter (--kind, --text, ...), or --all.`,
    );
  const engine = await attach();
  return filtered
    ? changeFound(terminal, engine, kind, filter, flags.yes === true)
    : changeNamed(terminal, engine, kind, ids);
}
