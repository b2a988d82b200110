// What an operator's change came to, as a state or as the error that says why not.
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { JobState } from "./core/job.ts";
import type { OperatorAnswer } from "./core/store.ts";

export function stateAfter(id: string, change: "cancel" | "retry", answer: OperatorAnswer): JobState {
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
      throw wrongState(id, change, answer.state);
    case "key-held":
      throw new OutliveError(
        ErrorCode.keyHeld,
        `Job ${id} can't be retried: job ${answer.holder} is unfinished and holds its dedupe key ${JSON.stringify(answer.dedupeKey)}.`,
        "Cancel that job, or let it finish.",
        { jobId: id, holder: answer.holder, dedupeKey: answer.dedupeKey },
      );
  }
}

/** Only what has ended can be retried, and only what has not can be cancelled. */
function wrongState(id: string, change: "cancel" | "retry", state: JobState): OutliveError {
  const [what, hint] =
    change === "cancel"
      ? [
          "it has ended and will not run again, so there is nothing to cancel",
          `Leave it, and it goes after the retention time; or run it again: outlive retry ${id}, or engine.retry(id).`,
        ]
      : ["it has not ended, so there is nothing to retry", "It runs without that. Only finished jobs can be retried."];
  return new OutliveError(ErrorCode.wrongState, `Job ${id} is ${state}; ${what}.`, hint, { jobId: id, state });
}
