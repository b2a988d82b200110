// The parts of scripts that are about what people change: many jobs at once, pauses, removal.
import type { AuditEntry } from "../../../src/job/audit.ts";
import { isTerminal } from "../../../src/job/job.ts";
import { BY_HAND } from "../../../src/job/transitions.ts";
import { changedCount, type HandChange, type KindPause, type OperatorAnswer } from "../../../src/stores/port.ts";
import { NEVER_DUE } from "../../../src/stores/rows.ts";
import { audit } from "./audit.ts";
import { applyByHand } from "./looking.ts";
import { type Data, type JobRecord, sumOf } from "./records.ts";
import { forgetWaits } from "./waits.ts";

export function changeJobs(
  data: Data,
  ids: readonly string[],
  change: HandChange,
  entry: AuditEntry,
): OperatorAnswer[] {
  const answers = ids.map((id) => changeJob(data, id, change, entry.actor));
  audit(data, entry, changedCount(answers));
  return answers;
}

function changeJob(data: Data, id: string, change: HandChange, actor: string): OperatorAnswer {
  switch (change.do) {
    case "cancel":
      return applyByHand(data, id, BY_HAND.cancel, actor, { children: change.children ?? false });
    case "promote": {
      const job = data.jobById(id);
      const { runAt = null, outcome = null, state = "queued" } = job ?? {};
      const isDelayed = runAt !== null && runAt > data.now && runAt !== NEVER_DUE && outcome !== "waiting";
      if (job !== null && state === "queued" && data.blockOf(job.row) === null && !isDelayed)
        return { is: "not-delayed" };
      return applyByHand(data, id, BY_HAND.promote, actor);
    }
    case "retry": {
      const answer = applyByHand(data, id, BY_HAND.retry, actor);
      if (answer.is === "applied" && change.input !== undefined) edit(data, id, change.input);
      return answer;
    }
    case "remove":
      return remove(data, id, actor);
  }
}

/** What was kept of the former input is not of this one. */
function edit(data: Data, id: string, input: string): void {
  const job = data.jobById(id)!;
  data.putJob({ ...job, input, inputSum: sumOf(input, id) });
  data.putSteps(job.row, []);
  data.keys.delete("waits", String(job.row));
}

/** What comes after it by its dedupe key has its contents, and goes with it. */
function remove(data: Data, id: string, actor: string): OperatorAnswer {
  const job = data.jobById(id);
  if (job === null) return { is: "missing" };
  const { row, state } = job;
  if (state === "running") return { is: "wrong-state", state };
  const batch = data.blockOf(row)?.batch;
  if (batch !== undefined) return { is: "of-batch", batch };
  data.deleteRerun(row);
  applyByHand(data, id, BY_HAND.remove, actor);
  // An incident says that a job was in flight, and no more about this one.
  for (const { id: incident } of data.incidents()) {
    const listed = data.incidentJob(incident, row);
    if (listed !== null) data.putIncidentJob(incident, { ...listed, lastStep: null, error: null });
  }
  const ended = data.job(row)!;
  const parent = job.parent === null ? null : data.job(job.parent);
  if (parent !== null && !isTerminal(parent.state)) empty(data, ended);
  else {
    forgetWaits(data, row);
    data.deleteJob(ended);
  }
  return { is: "removed" };
}

/** As long as its parent is unfinished, its record stays, without contents. */
function empty(data: Data, job: JobRecord): void {
  const input = "null";
  const nothing = { result: null, resultSum: null, progress: null, dedupeKey: null };
  data.putJob({ ...job, ...nothing, input, inputSum: sumOf(input, job.id) });
  for (const table of ["steps", "history", "logs", "waits", "signals"]) data.keys.delete(table, String(job.row));
}

export function setPaused(
  data: Data,
  name: string,
  paused: boolean,
  how?: KindPause | null,
  entry?: AuditEntry | null,
): boolean {
  const kind = data.kind(name);
  if (!kind) return false;
  const { actor = "operator", reason = null, untilAt = null, forMs = null } = how ?? {};
  const until = untilAt ?? (forMs === null ? null : data.now + forMs);
  const { settings } = kind;
  data.putKind(paused ? { settings, paused, pause: { by: actor, reason, at: data.now, until } } : { settings, paused });
  audit(data, entry, 1);
  return true;
}
