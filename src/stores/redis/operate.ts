// What people change by hand.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
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
      const [is, state] = (await connection.eval("signal", args, { script: "signal", args })) as [
        SignalAnswer["is"],
        number,
      ];
      return is === "ended" ? { is, state: JOB_STATES[state]! } : { is };
    },
    async setLimit({ id, limit, key }, own) {
      if (own?.weight !== undefined) throw noWeights(limit, key);
      const given = [own?.running, own?.intervalMs, own?.burst].map((value) => String(value ?? ""));
      await connection.eval("setLimit", [String(id), ...given]);
    },
    async setPaused(kind, paused) {
      return (await connection.eval("setPaused", [kind, paused ? "1" : "0"])) === 1;
    },
    noteDeath: (worker, words) => noteDeath(connection, worker, words),
  };
}

function noWeights(limit: string, key: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `A redis store can't give the key ${key} of the limit ${limit} a weight: its keys do not take turns.`,
    "Nothing was changed. Leave the weight out, or use a SQLite or PostgreSQL store.",
    { limit, key },
  );
}

function operatorAnswer(reply: Reply): OperatorAnswer {
  const [is, what, key] = reply as [Exclude<OperatorAnswer["is"], "of-batch">, number | string, string];
  if (is === "applied" || is === "wrong-state") return { is, state: JOB_STATES[Number(what)]! };
  if (is === "key-held") return { is, holder: String(what), dedupeKey: key };
  return { is };
}
