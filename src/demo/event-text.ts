// One line for people about an event of the engine in a worker process; most events need none.
import type { EngineEvent } from "../index.ts";
import { count } from "./ink.ts";
import type { Fleet, Place } from "../torture/fleet.ts";
import type { DemoEvent } from "./live-view.ts";

export function eventText(fleet: Fleet, at: Place, event: EngineEvent): Pick<DemoEvent, "text" | "mood"> | null {
  const me = `worker ${at.number}`;
  const who = (id: string): string => {
    const place = fleet.placeOf(id);
    return place === at.number ? "its predecessor" : `worker ${place ?? id}`;
  };
  switch (event.name) {
    case "worker.gone":
      return { text: `${me} found ${who(event.worker)} ${event.how}${evidence(event.evidence)}`, mood: "good" };
    case "recovery.completed":
      if (event.jobs === 0) return null;
      return { text: `${me} requeued ${count(event.jobs, "job")} in ${Math.round(event.durationMs)} ms`, mood: "good" };
    case "job.quarantined":
      return { text: `${event.jobId} is in quarantine: ${event.reason}`, mood: "good" };
    case "worker.disowned":
      return { text: `${me} learned that it was taken for dead, with ${count(event.held, "job")}`, mood: "plain" };
    case "write.rejected": {
      const { jobId, fence } = event.lease;
      const now = event.fence === fence ? `it is ${event.state}` : `it is ${event.fence} now`;
      return { text: `refused: "${event.tried}" of ${jobId} by ${me} with fence ${fence}; ${now}`, mood: "good" };
    }
    case "recovery.failed":
      return { text: `${me} could not recover ${who(event.worker)}: ${event.error.message}`, mood: "bad" };
    case "job.failed":
    case "job.dead":
      return { text: `${me}: ${event.name} ${event.jobId}`, mood: "bad" };
    case "heartbeat.failed":
      // One late answer is a busy store; the engine tries again.
      if (event.failures < 3) return null;
      return { text: `${me}: ${event.failures} heartbeats in a row failed: ${event.error.message}`, mood: "bad" };
    case "store.failed":
    case "call.failed":
    case "listener.failed":
      return { text: `${me}: ${event.name}: ${event.error.message}`, mood: "bad" };
    case "worker.blocked":
      return { text: `the loop of ${me} stood still for ${event.loopLagMs} ms`, mood: "bad" };
    default:
      return null;
  }
}

function evidence(text: string | null): string {
  return text === null ? "" : `: ${text}`;
}
