// What people change by hand.
import { JOB_STATES, type JobState, TERMINAL_STATES } from "../../job/job.ts";
import { MAX_SIGNALS } from "../../job/waits.ts";
import { BY_HAND, cancel, type Change } from "../../job/transitions.ts";
import type { HandChange, Operating, OperatorAnswer, SignalAnswer } from "../port.ts";
import { STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { changeArgs, checked, countersOf, entryArgs, inputOwner, shownJob } from "./encoding.ts";
import { noteDeath } from "./workers.ts";

const NO_COUNTERS = countersOf({});

export function operating(connection: Connection): Operating {
  return {
    async cancel(id, actor, options) {
      const { changes, request } = BY_HAND.cancel;
      const family = options?.children ? familyText(id) : "";
      const args = [id, actor, request, family, ...changeArgs(changes.queued!, id)];
      return operatorAnswer(await connection.eval("cancel", args));
    },
    async retry(id, actor) {
      const args = TERMINAL_STATES.flatMap((state) => changeArgs(BY_HAND.retry.changes[state]!, id));
      return operatorAnswer(await connection.eval("retry", [id, actor, ...args]));
    },
    async change(ids, change, entry) {
      const own = await Promise.all(ids.map((id) => ownText(connection, id, change)));
      const states = changesOf(change);
      const args = [
        change.do,
        entry.actor,
        ...entryArgs(entry),
        BY_HAND.cancel.request,
        String(states.length),
        ...states.flatMap(([state, one]) => [String(STATE[state]), ...changeArgs(one, "")]),
        String(ids.length),
        ...ids.flatMap((id, at) => [id, own[at]!]),
      ];
      return ((await connection.eval("change", args)) as readonly Reply[]).map(operatorAnswer);
    },
    async signal({ job, name, payload, id }, entry) {
      const args = [...entryArgs(entry), job, name, checked(payload, job), id, String(MAX_SIGNALS)];
      const [is, state] = (await connection.eval("signal", args, [{ script: "signal", args }])) as [
        SignalAnswer["is"],
        number,
      ];
      return is === "ended" ? { is, state: JOB_STATES[state]! } : { is };
    },
    async setLimit({ id, limit, key }, own, entry) {
      const given = [own?.running, own?.intervalMs, own?.burst, own?.weight].map((value) => String(value ?? ""));
      await connection.eval("setLimit", [...entryArgs(entry), String(id), limit, key, ...given]);
    },
    async pauseKey({ id, limit, key }, pause, entry) {
      const how = pause === null ? ["", "", ""] : ["1", pause.reason, String(pause.forMs ?? "")];
      for (let again = ""; ; again = "1")
        if ((await connection.eval("pauseKey", [...entryArgs(entry), String(id), limit, key, again, ...how])) === 0)
          return;
    },
    async setPaused(kind, paused, how, entry) {
      const { actor = "operator", reason = null, untilAt = null, forMs = null } = how ?? {};
      const pause = [actor, reason ?? "", String(untilAt ?? ""), String(forMs ?? "")];
      return (await connection.eval("setPaused", [...entryArgs(entry), kind, paused ? "1" : "0", ...pause])) === 1;
    },
    noteDeath: (worker, words) => noteDeath(connection, worker, words),
  };
}

/** The change from each state in which something is done. */
function changesOf(change: HandChange): [JobState, Change][] {
  const { changes } = BY_HAND[change.do];
  return Object.entries(changes) as [JobState, Change][];
}

/**
 * What the script needs for one job alone: a new input, or that of a job that is removed, as it is stored, with the checksum of its kind; or the change of its
 * children, which names it. Nothing: neither is asked for.
 */
async function ownText(connection: Connection, id: string, change: HandChange): Promise<string> {
  if (change.do === "cancel" && change.children) return familyText(id);
  const input = change.do === "remove" ? "null" : change.do === "retry" ? change.input : undefined;
  if (input === undefined) return "";
  const kind = await kindOf(connection, id);
  return kind === null ? "" : checked(input, inputOwner(kind));
}

function familyText(id: string): string {
  return JSON.stringify(changeArgs(cancel({ id: "", state: "queued", counters: NO_COUNTERS }, id), ""));
}

function operatorAnswer(reply: Reply): OperatorAnswer {
  const [is, what, key] = reply as [OperatorAnswer["is"], number | string, string];
  if (is === "applied" || is === "wrong-state") return { is, state: JOB_STATES[Number(what)]! };
  if (is === "of-batch") return { is, batch: String(what) };
  if (is === "key-held") return { is, holder: String(what), dedupeKey: key };
  return { is };
}

async function kindOf(connection: Connection, id: string): Promise<string | null> {
  const [shown] = (await connection.eval("getJob", [id])) as [Reply];
  return shown === undefined ? null : shownJob(shown).kind;
}
