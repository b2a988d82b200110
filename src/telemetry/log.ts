// The one subscriber that writes the log: one line per fact. Core never logs.
import type { EngineEvent, EventBus } from "../core/events.ts";

/** Anything that takes a line and its data: pino, winston, console, your own. */
export interface Logger {
  info(message: string, data?: object): void;
  warn(message: string, data?: object): void;
  error(message: string, data?: object): void;
}

/** Writes warnings, errors and recoveries to stderr through `console`; stdout belongs to the program. */
export const consoleLogger: Logger = {
  info: (message) => console.error(`[outlive] ${message}`),
  warn: (message) => console.warn(`[outlive] ${message}`),
  error: (message) => console.error(`[outlive] ${message}`),
};

export function attachLog(bus: EventBus, logger: Logger): () => void {
  return bus.onAny((event) => {
    const line = lineOf(event);
    if (!line) return;
    const { name: _, ...data } = event;
    logger[line.level](line.text, data);
  });
}

function lineOf(event: EngineEvent): { level: keyof Logger; text: string } | null {
  switch (event.name) {
    case "recovery.started":
    case "worker.started":
    case "worker.stopped":
    case "job.succeeded":
    case "job.claimed":
    case "attempt.ended":
    case "job.log":
      return null;
    case "recovery.completed":
      if (event.incidents.length === 0) return null;
      return {
        level: "info",
        text: `recovery ${event.recovery} by ${event.by}: ${event.incidents.length} dead worker(s), ${event.jobs} job(s), ${event.failed} failed, ${Math.round(event.durationMs)} ms`,
      };
    case "recovery.failed":
      return {
        level: "error",
        text: `recovery of worker ${event.worker} failed and will be tried again: ${event.error.message}`,
      };
    case "job.recovered":
      return {
        level: event.success ? "info" : "error",
        text: `job ${event.jobId} (${event.kind}) of dead worker ${event.worker}: ${event.success ? event.decision : `not recovered: ${event.error}`}${event.lastStep === null ? "" : `, last step ${event.lastStep}`}`,
      };
    case "job.quarantined":
      return { level: "error", text: `job ${event.jobId} (${event.kind}) is quarantined: ${event.reason}` };
    case "worker.gone":
      return {
        level: "warn",
        text: `worker ${event.worker} is ${event.how}; incident ${event.incident}${event.evidence === null ? "" : ` (${event.evidence})`}`,
      };
    case "worker.cleaned":
      return { level: "info", text: `cleaned up after worker ${event.worker}` };
    case "worker.disowned":
      return {
        level: "warn",
        text: `worker ${event.worker} was taken for dead while it held ${event.held} job(s); it starts again under a new id`,
      };
    case "worker.blocked":
      return {
        level: "warn",
        text: `the main loop of worker ${event.worker} has stood still for ${event.loopLagMs} ms; nothing is taken from it for that`,
      };
    case "lease.lost":
      return {
        level: "warn",
        text: `worker ${event.worker} was silent for ${event.lateMs} ms longer than its lease allows; ${event.held} handler(s) were told to stop`,
      };
    case "heartbeat.failed":
      return {
        level: "warn",
        text: `heartbeat ${event.failures} in a row of worker ${event.worker} failed: ${event.error.message}`,
      };
    case "write.rejected":
      return { level: "warn", text: event.text };
    case "job.failed":
      return {
        level: "warn",
        text: `attempt ${event.attempt} of job ${event.jobId} (${event.kind}) failed: ${event.error.message}${event.to === "queued" ? `; again in ${event.delayMs} ms` : ""}`,
      };
    case "job.dead":
      return { level: "error", text: `job ${event.jobId} (${event.kind}) is dead: ${event.reason}` };
    case "job.overdue":
      return {
        level: "warn",
        text: `job ${event.jobId} is past its deadline${event.fencedOut ? ` and was taken from worker ${event.worker}` : ""}`,
      };
    case "job.released":
      return { level: "info", text: `job ${event.jobId} was given back: ${event.reason}` };
    case "store.failed":
      return {
        level: "warn",
        text: `the store failed while ${event.doing}: ${event.error.message}${event.retryInMs > 0 ? `; again in ${Math.round(event.retryInMs)} ms` : ""}`,
      };
    case "store.notice":
      return { level: "warn", text: event.text };
    case "recovery.held":
      return {
        level: "warn",
        text: `${event.why}; nobody is called dead for the next ${Math.round(event.holdMs)} ms`,
      };
    case "listener.failed":
      return { level: "error", text: `a listener of ${event.event} threw: ${event.error.message}` };
  }
}
