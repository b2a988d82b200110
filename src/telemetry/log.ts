// The one subscriber that writes the log: one line per fact. Core never logs.
import type { EngineEvent, EventBus } from "../core/events.ts";
import { integrityText } from "../core/integrity.ts";
import { oneLine } from "../core/text.ts";
import { redactText } from "./redact.ts";

/** Anything that takes a line and its data: pino, winston, console, your own. */
export interface Logger {
  info(message: string, data?: object): void;
  warn(message: string, data?: object): void;
  error(message: string, data?: object): void;
}

/**
 * Writes warnings, errors and recoveries to stderr through `console`; stdout belongs to the program. Messages hold what handlers threw:
 * secrets are taken out, and control characters are written out, so that a message is one line and can't steer a terminal.
 */
export const consoleLogger: Logger = {
  info: (message) => console.error(safeLine(message)),
  warn: (message) => console.warn(safeLine(message)),
  error: (message) => console.error(safeLine(message)),
};

function safeLine(message: string): string {
  return `[outlive] ${oneLine(redactText(message))}`;
}

export function attachLog(bus: EventBus, logger: Logger): () => void {
  return bus.onAny((event) => {
    const line = lineOf(event);
    if (!line) return;
    const { name: _, ...data } = event;
    logger[line.level](line.text, data);
  });
}

interface Line {
  readonly level: keyof Logger;
  readonly text: string;
}

const RESOLVED = {
  returned: "returned: nothing is counted against its jobs",
  died: "had died: the loss counts as a crash of its jobs",
  away: "stayed away for two leases: the loss counts as a crash of its jobs",
} as const;

function lineOf(event: EngineEvent): Line | null {
  switch (event.name) {
    case "worker.registering":
    case "worker.started":
    case "worker.stopped":
    case "job.succeeded":
    case "job.claimed":
    case "attempt.ended":
    case "job.log":
      return null;
    case "wal.checkpointed":
      return null;
    case "recovery.started":
      return { level: "info", text: `recovery ${event.recovery} by ${event.by} started` };
    case "recovery.completed":
      return { level: "info", text: lineOfRecovery(event) };
    case "recovery.failed":
      return {
        level: "error",
        text: `recovery of worker ${event.worker} failed and will be tried again: ${event.error.message}`,
      };
    case "recovery.waits":
      return {
        level: "warn",
        text: `${event.jobs} job(s) of dead worker ${event.worker} are held by another session of the store; they are taken when it lets go`,
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
        text: `${event.how === "gone" ? `worker ${event.worker} is gone` : `contact with worker ${event.worker} was lost`}; incident ${event.incident}${event.evidence === null ? "" : ` (${event.evidence})`}`,
      };
    case "loss.resolved":
      return {
        level: "info",
        text: `worker ${event.worker ?? "unknown"}, with which contact was lost, ${RESOLVED[event.resolution]}; incident ${event.incident}`,
      };
    case "worker.cleaned":
      return { level: "info", text: `cleaned up after worker ${event.worker}` };
    case "worker.disowned":
      return {
        level: "warn",
        text: `worker ${event.worker} was taken for dead while it held ${event.held} job(s); it starts again under a new id`,
      };
    case "store.replaced":
      return {
        level: "error",
        text: `worker ${event.worker} stopped at once while it held ${event.held} job(s): the store is not the one that it registered with: ${event.why}`,
      };
    case "store.restored":
      return {
        level: "warn",
        text: `the store came back from a backup: ${event.why}; workers from before can't write any more, and their jobs are queued again`,
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
    case "call.failed":
      return {
        level: "warn",
        text: `run.${event.call} of job ${event.jobId} (${event.kind}) failed${event.attemptEnded ? ` after the end of attempt ${event.attempt}` : ""}: ${event.error.message}`,
      };
    case "store.failed":
      return {
        level: "warn",
        text: `the store failed while ${event.doing}: ${event.error.message}${event.retryInMs > 0 ? `; again in ${Math.round(event.retryInMs)} ms` : ""}`,
      };
    case "open.waits":
    case "integrity.checked":
    case "store.repaired":
    case "store.inconsistent":
    case "journal.restored":
    case "checkpoint.failed":
    case "wal.held":
      return lineOfStore(event);
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

function lineOfRecovery(event: EngineEvent & { readonly name: "recovery.completed" }): string {
  const { recovery, by, incidents, jobs, failed, durationMs, findings } = event;
  const found =
    incidents.length === 0
      ? "nothing to recover"
      : `${incidents.length} dead worker(s), ${jobs} job(s), ${failed} failed`;
  const check = findings ? `; integrity check ${integrityText(findings)}` : "";
  return `recovery ${recovery} by ${by}: ${found}, ${Math.round(durationMs)} ms${check}`;
}

type OfStore =
  | "open.waits"
  | "integrity.checked"
  | "store.repaired"
  | "store.inconsistent"
  | "journal.restored"
  | "checkpoint.failed"
  | "wal.held";

/** What is told of the store itself. */
function lineOfStore(event: EngineEvent & { readonly name: OfStore }): Line | null {
  switch (event.name) {
    case "open.waits":
      return {
        level: "warn",
        text: `the open waits for the start-up of ${event.pid === null ? "another process" : `process ${event.pid} (${event.command})`}`,
      };
    case "integrity.checked":
      return lineOfCheck(event);
    case "store.repaired":
      return {
        level: event.sound ? "warn" : "error",
        text: `the store was damaged and ${event.sound ? "is sound again; make a backup now" : "could not be repaired"}: ${event.steps.map(({ step, detail }) => `${step}: ${detail}`).join("; ")}`,
      };
    case "store.inconsistent":
      return {
        level: "warn",
        text: `the store contradicts itself: ${event.inconsistencies.map(({ detail }) => detail).join(" ")}`,
      };
    case "journal.restored":
      return { level: "warn", text: `another tool had set the journal mode to ${event.was}; it is WAL again` };
    case "checkpoint.failed":
      return {
        level: "warn",
        text: `the write-ahead log (${event.frames} frames) was not flushed whole: ${event.reason}${readersText(event.readers)}; nothing is lost, it is tried again`,
      };
    case "wal.held":
      return {
        level: "warn",
        text: `the write-ahead log has ${Math.round(event.bytes / (1 << 20))} MB and can't shrink while an old state is read${readersText(event.readers)}`,
      };
  }
}

function lineOfCheck(event: EngineEvent & { readonly name: "integrity.checked" }): Line | null {
  const which = `the ${event.depth} integrity check${event.background ? " in the background" : ""}`;
  switch (event.verdict) {
    case "PASSED":
      return event.background ? { level: "info", text: `${which} PASSED` } : null;
    case "UNFINISHED":
      return {
        level: "warn",
        text: `${which} was not finished within ${Math.round(event.tookMs)} ms; it goes on in the background`,
      };
    case "FAILED":
      return {
        level: "error",
        text: `${which} FAILED: ${event.findings.slice(0, 3).join("; ")}${event.background ? ". Stop all workers, then: outlive check --repair" : ""}`,
      };
  }
}

function readersText(readers: readonly { readonly pid: number; readonly command: string }[]): string {
  if (readers.length === 0) return "";
  return `, by ${readers.map(({ pid, command }) => `process ${pid} (${command})`).join(", ")}`;
}
