// What people change by hand.
import { JOB_STATES, TERMINAL_STATES } from "../../job/job.ts";
import { MAX_SIGNALS } from "../../job/waits.ts";
import { cancel, retry } from "../../job/transitions.ts";
import type { Operating, OperatorAnswer, SignalAnswer } from "../port.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { changeArgs, checked, countersOf } from "./encoding.ts";
import { noteDeath } from "./workers.ts";

const NO_COUNTERS = countersOf({});

export function operating(connection: Connection): Operating {
  return {
    async cancel(id, actor) {
      const change = cancel({ id, state: "queued", counters: NO_COUNTERS });
      return operatorAnswer(await connection.eval("cancel", [id, actor, ...changeArgs(change, id)]));
    },
    async retry(id, actor) {
      const changes = TERMINAL_STATES.map((state) => retry({ id, state, counters: NO_COUNTERS }, 0));
      const args = changes.flatMap((change) => changeArgs(change, id));
      return operatorAnswer(await connection.eval("retry", [id, actor, ...args]));
    },
    async signal({ job, name, payload, id }) {
      const args = [job, name, checked(payload, job), id, String(MAX_SIGNALS)];
      const [is, state] = (await connection.eval("signal", args)) as [SignalAnswer["is"], number];
      return is === "ended" ? { is, state: JOB_STATES[state]! } : { is };
    },
    async setLimit({ id }, own) {
      const given = [own?.running, own?.intervalMs, own?.burst].map((value) => String(value ?? ""));
      await connection.eval("setLimit", [String(id), ...given]);
    },
    async setPaused(kind, paused) {
      return (await connection.eval("setPaused", [kind, paused ? "1" : "0"])) === 1;
    },
    noteDeath: (worker, words) => noteDeath(connection, worker, words),
  };
}

function operatorAnswer(reply: Reply): OperatorAnswer {
  const [is, what, key] = reply as [OperatorAnswer["is"], number | string, string];
  if (is === "applied" || is === "wrong-state") return { is, state: JOB_STATES[Number(what)]! };
  if (is === "key-held") return { is, holder: String(what), dedupeKey: key };
  return { is };
}
