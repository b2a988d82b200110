// What people change by hand.
import { JOB_STATES, TERMINAL_STATES } from "../../job/job.ts";
import { MAX_SIGNALS } from "../../job/waits.ts";
import { BY_HAND, cancel } from "../../job/transitions.ts";
import type { Operating, OperatorAnswer, SignalAnswer } from "../port.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { changeArgs, checked, countersOf } from "./encoding.ts";
import { noteDeath } from "./workers.ts";

const NO_COUNTERS = countersOf({});

export function operating(connection: Connection): Operating {
  return {
    async cancel(id, actor, options) {
      const { changes, request } = BY_HAND.cancel;
      const ofChild = cancel({ id: "", state: "queued", counters: NO_COUNTERS }, id);
      const family = options?.children ? JSON.stringify(changeArgs(ofChild, "")) : "";
      const args = [id, actor, request, family, ...changeArgs(changes.queued!, id)];
      return operatorAnswer(await connection.eval("cancel", args));
    },
    async retry(id, actor) {
      const args = TERMINAL_STATES.flatMap((state) => changeArgs(BY_HAND.retry.changes[state]!, id));
      return operatorAnswer(await connection.eval("retry", [id, actor, ...args]));
    },
    async signal({ job, name, payload, id }) {
      const args = [job, name, checked(payload, job), id, String(MAX_SIGNALS)];
      const [is, state] = (await connection.eval("signal", args, [{ script: "signal", args }])) as [
        SignalAnswer["is"],
        number,
      ];
      return is === "ended" ? { is, state: JOB_STATES[state]! } : { is };
    },
    async setLimit({ id, limit, key }, own) {
      const given = [own?.running, own?.intervalMs, own?.burst, own?.weight].map((value) => String(value ?? ""));
      await connection.eval("setLimit", [String(id), limit, key, ...given]);
    },
    async pauseKey({ id, limit, key }, pause) {
      const how = pause === null ? ["", "", ""] : ["1", pause.reason, String(pause.forMs ?? "")];
      for (let again = ""; ; again = "1")
        if ((await connection.eval("pauseKey", [String(id), limit, key, again, ...how])) === 0) return;
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
  if (is === "of-batch") return { is, batch: String(what) };
  if (is === "key-held") return { is, holder: String(what), dedupeKey: key };
  return { is };
}
