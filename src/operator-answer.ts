// What an operator's change came to, as a state or as the error that says why not.
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { JobState } from "./core/job.ts";
import type { OperatorAnswer } from "./core/store.ts";

export function stateAfter(id: string, change: string, answer: OperatorAnswer): JobState {
  switch (answer.is) {
    case "applied":
      return answer.state;
    case "requested":
      return "running";
    case "missing":
      throw new OutliveError(
        ErrorCode.notFound,
        `There is no job ${id}.`,
        "Check the id; finished jobs are kept for the retention time only.",
        { jobId: id },
      );
    case "wrong-state":
      throw new OutliveError(
        ErrorCode.wrongState,
        `Job ${id} is ${answer.state}; it can't be changed by "${change}".`,
        change === "retry" ? "Only finished jobs can be retried." : "Only queued and running jobs can be cancelled.",
        { jobId: id, state: answer.state },
      );
    case "key-held":
      throw new OutliveError(
        ErrorCode.keyHeld,
        `Job ${id} can't be retried: job ${answer.holder} is unfinished and holds its dedupe key ${JSON.stringify(answer.dedupeKey)}.`,
        "Cancel that job, or let it finish.",
        { jobId: id, holder: answer.holder, dedupeKey: answer.dedupeKey },
      );
  }
}
