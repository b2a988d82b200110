// Retry, cancel and release: of jobs that are named, or of all that a filter finds. Named ones are changed at once; a filter first
// says how many it would change and wants --yes. One job that can't be changed stops no other.
import type { Engine } from "../engine/engine.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { JobState } from "../job/job.ts";
import { CORRUPT_HINT } from "../job/transitions.ts";
import type { JobFilter } from "../stores/port.ts";
import { ExitCode, exitCodeOf } from "./exit-codes.ts";
import { progress } from "./live-view.ts";
import { allPages, assertKindIsThere } from "./lookup.ts";
import type { Terminal } from "./terminal.ts";
import { count } from "./words.ts";

export interface ChangeKind {
  /** "retry", "cancel", "release". */
  readonly name: string;
  /** "queued again", "cancelled". */
  readonly done: string;
  /** What a filter without a state looks at. */
  readonly states: readonly JobState[];
  readonly apply: (engine: Engine, id: string) => Promise<JobState>;
}

export type ChangedJob =
  | {
      readonly id: string;
      readonly state: JobState;
      /** What is damaged of a job that was queued again: it will be quarantined again. Left out: nothing that was looked at. */
      readonly corrupt?: readonly string[];
    }
  | { readonly id: string; readonly error: { readonly code: string; readonly message: string } };

/** `--json` of retry, cancel and quarantine release. */
export interface Changed {
  readonly change: string;
  readonly changed: number;
  readonly failed: number;
  /** All that were named; of those that a filter found, the ones that failed, at most 100. */
  readonly jobs: readonly ChangedJob[];
}

const MOST_LISTED = 100;
/** A search for the number is given up here: "more than". */
const MOST_COUNTED = 100_000;

export async function changeNamed(
  terminal: Terminal,
  engine: Engine,
  change: ChangeKind,
  ids: readonly string[],
): Promise<number> {
  const { jobs, code } = await applyAll(engine, change, [...new Set(ids)], true);
  tell(terminal, change, jobs, jobs);
  return code;
}

export async function changeFound(
  terminal: Terminal,
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  yes: boolean,
  now?: () => number,
): Promise<number> {
  const told = progress(terminal.remark, yes ? change.name : "counting", now);
  if (!yes) throw await unconfirmed(engine, change, filter, told);
  const all: ChangedJob[] = [];
  let code: number = ExitCode.ok;
  for (const state of statesOf(change, filter)) {
    for await (const page of allPages(engine, { ...filter, state })) {
      const applied = await applyAll(
        engine,
        change,
        page.map(({ id }) => id),
        state === "quarantined",
      );
      all.push(...applied.jobs);
      if (code === ExitCode.ok) code = applied.code;
      told(all.length);
    }
  }
  if (all.length === 0) await assertKindIsThere(engine, filter.kind);
  tell(terminal, change, all, all.filter((job) => "error" in job).slice(0, MOST_LISTED));
  return code;
}

function statesOf(change: ChangeKind, filter: JobFilter): readonly JobState[] {
  return filter.state === undefined ? change.states : [filter.state];
}

/** Together, so that they share transactions. `looked`: also looks whether what was queued again can run at all. */
async function applyAll(
  engine: Engine,
  change: ChangeKind,
  ids: readonly string[],
  looked: boolean,
): Promise<{ jobs: ChangedJob[]; code: number }> {
  let code: number = ExitCode.ok;
  const jobs = await Promise.all(
    ids.map(async (id): Promise<ChangedJob> => {
      try {
        const state = await change.apply(engine, id);
        const corrupt = (looked && state === "queued" && (await engine.get(id))?.corrupt) || [];
        return corrupt.length === 0 ? { id, state } : { id, state, corrupt };
      } catch (thrown) {
        if (!(thrown instanceof OutliveError) || exitCodeOf(thrown) === ExitCode.failure) throw thrown;
        if (code === ExitCode.ok) code = exitCodeOf(thrown);
        return { id, error: { code: thrown.code, message: thrown.message } };
      }
    }),
  );
  return { jobs, code };
}

function tell(terminal: Terminal, change: ChangeKind, all: readonly ChangedJob[], listed: readonly ChangedJob[]): void {
  const failed = all.filter((job) => "error" in job).length;
  const changed = all.length - failed;
  const answer: Changed = { change: change.name, changed, failed, jobs: listed };
  terminal.answer(answer, () =>
    [
      all.length === 0 ? "No such jobs; nothing was changed." : `${count(changed, "job")} ${change.done}.`,
      ...(failed === 0 ? [] : [`${count(failed, "job")} could not be changed:`]),
      ...listed.flatMap((job) => ("error" in job ? [`  ${job.error.message}`] : [])),
      ...all.flatMap((job) =>
        "state" in job && job.corrupt
          ? [
              `Job ${job.id}: the stored ${job.corrupt.join(" and ")} ${job.corrupt.length === 1 ? "does" : "do"} not match, so it will be quarantined again. ${CORRUPT_HINT}`,
            ]
          : [],
      ),
      ...(change.name === "cancel" && all.some((job) => "state" in job && job.state === "running")
        ? ["Those that run were told by their signal; they end within the grace of their kind."]
        : []),
    ].join("\n"),
  );
}

async function unconfirmed(
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  told: (jobs: number) => void,
): Promise<OutliveError> {
  const { found, more } = await howMany(engine, change, filter, told);
  if (found === 0) await assertKindIsThere(engine, filter.kind);
  const text = `${more ? "more than " : ""}${count(found, "job")}`;
  return new OutliveError(
    ErrorCode.optionInvalid,
    `This would ${change.name} ${text}; nothing was changed.`,
    found === 0 ? "Widen the filter." : "Add --yes to do it.",
    { change: change.name, found, more },
  );
}

/** The counts know states and kinds; anything else is looked for. */
async function howMany(
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  told: (jobs: number) => void,
): Promise<{ found: number; more: boolean }> {
  const states = statesOf(change, filter);
  if (filter.text === undefined && filter.createdAfter === undefined && filter.createdBefore === undefined) {
    const kinds = (await engine.counts()).filter(({ kind }) => filter.kind === undefined || kind === filter.kind);
    const inState = (kind: (typeof kinds)[number], state: JobState): number =>
      state === "queued" ? kind.ready + kind.delayed : kind[state];
    return {
      found: kinds.reduce((sum, kind) => sum + states.reduce((n, one) => n + inState(kind, one), 0), 0),
      more: false,
    };
  }
  let found = 0;
  for (const state of states) {
    for await (const page of allPages(engine, { ...filter, state })) {
      found += page.length;
      told(found);
      if (found >= MOST_COUNTED) return { found, more: true };
    }
  }
  return { found, more: false };
}
