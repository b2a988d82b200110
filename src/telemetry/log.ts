// The one subscriber that writes the log: one line per fact, without secrets. The domain never logs.
import { styleText } from "node:util";
import type { EngineEvent, EventBus } from "../job/events.ts";
import { counted, oneLine, storableText } from "../job/text.ts";
import { isoInstant } from "../job/time.ts";
import { ownFolder } from "../platform/program-file.ts";
import { integrityText } from "../stores/store-parts.ts";

/** Anything that takes a line and its data: pino, winston, console, your own. */
export interface Logger {
  /** Writes something that happens in normal operation. */
  info(message: string, data?: object): void;
  /** Writes something that a person should check. */
  warn(message: string, data?: object): void;
  /** Writes something that failed. */
  error(message: string, data?: object): void;
  /** Writes what happens for each part of a collection. Default: nothing of it is written. */
  debug?(message: string, data?: object): void;
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

/** Without a logger of the program: `console`, and no routine lines. */
export function attachLog(bus: EventBus, logger: Logger | undefined): () => void {
  const offs = [bus.onAny((event) => logEvent(logger ?? consoleLogger, event, logger !== undefined))];
  // `console` writes debug lines to stdout whatever was asked for.
  if (logger?.debug && (logger as unknown) !== console)
    offs.push(
      bus.on("part.accepted", (event) => {
        const { ordinal, series, collection, bytes } = event;
        logger.debug!(`part ${ordinal} of ${series} of collection ${collection} was accepted: ${bytes} bytes`, event);
      }),
    );
  return () => offs.forEach((off) => off());
}

/** `routine`: also what happens at every clean start. */
export function logEvent(logger: Logger, event: EngineEvent, routine: boolean): void {
  const line = lineOf(event);
  if (!line || (line.routine && !routine)) return;
  const { name: _, ...data } = event;
  logger[line.level](line.text, data);
}

interface Line {
  readonly level: "info" | "warn" | "error";
  readonly text: string;
  readonly routine?: boolean;
}

const RESOLVED = {
  returned: "returned: nothing is counted against its jobs",
  died: "had died: the loss counts as a crash of its jobs",
  away: "stayed away for two leases: the loss counts as a crash of its jobs",
} as const;

const SKIPPED = {
  missed: "no worker could fire it in time",
  "too-old": "it was missed for longer than `within` allows",
  overlap: "the job before it has not ended",
} as const;

function lineOf(event: EngineEvent): Line | null {
  switch (event.name) {
    case "worker.registering":
    case "worker.started":
    case "worker.stopped":
    case "job.succeeded":
    case "job.claimed":
    case "attempt.ended":
    case "store.called":
    case "job.log":
    case "request.ended":
    case "part.accepted":
      return null;
    case "request.circuit":
      return {
        level: "warn",
        text: `the circuit of ${event.key} (${event.kind}) is open: nothing is sent to it for ${event.pauseMs} ms`,
      };
    case "request.sentAgain":
      return {
        level: "info",
        text: `request ${event.jobId} (${event.kind}) is sent again to ${event.host} by attempt ${event.attempt}: ${event.worker === null ? "the worker of the previous attempt" : `worker ${event.worker}`} died or lost contact`,
      };
    case "request.disabled":
      return {
        level: "warn",
        text: `${event.key} (${event.kind}) is disabled: ${event.reason}; resume it with engine.limits.resume`,
      };
    case "batch.ended": {
      const { total, succeeded } = event.rows;
      return {
        level: event.state === "completed" ? "info" : "warn",
        text: `batch ${event.batch} of ${event.kind} is ${event.state}: ${succeeded} of ${total} rows succeeded`,
      };
    }
    case "schedule.fired":
      return event.caughtUp
        ? {
            level: "info",
            text: `schedule ${event.schedule} enqueued job ${event.jobId} late, for ${isoInstant(event.at)}, which was missed`,
          }
        : null;
    case "schedule.skipped":
      return {
        level: event.reason === "overlap" ? "info" : "warn",
        text: `schedule ${event.schedule} skipped ${counted(event.count, "occurrence")} from ${isoInstant(event.from)} to ${isoInstant(event.to)}: ${SKIPPED[event.reason]}`,
      };
    case "schedule.failed":
      return { level: "error", text: `schedule ${event.schedule} did not fire: ${event.error.message}` };
    case "schedule.outdated":
      return {
        level: "warn",
        text: `this program declares an older form of schedule ${event.schedule} than another worker; the newer one is kept`,
      };
    case "schedule.zones":
      return {
        level: "warn",
        text: `the next time of schedule ${event.schedule} was computed with time-zone data ${event.there}, this process has ${event.here}; use one version of Node everywhere`,
      };
    case "collection.started":
      return { level: "info", text: `collection ${event.collection} of ${event.kind} is open` };
    case "collection.changed":
      return {
        level: event.why === null ? "info" : "warn",
        text: `collection ${event.collection} of ${event.kind} is ${event.state}${event.why === null ? "" : `: ${event.why}`}`,
      };
    case "collections.found": {
      const states = Object.entries(event.counts).map(([state, count]) => `${count} ${state}`);
      return { level: "info", text: `collections that have not ended: ${states.join(", ")}` };
    }
    case "part.skipped":
      return {
        level: event.answer === "duplicate" ? "info" : "warn",
        text: `part ${event.ordinal} of ${event.series} of collection ${event.collection} was skipped: ${event.answer}`,
      };
    case "message.parked":
      return {
        level: "warn",
        text: `a message for ${event.kind}${event.collection === null ? "" : ` ${event.collection}`} is parked as ${event.id}: ${event.reason}`,
      };
    case "broker.changed":
      return { level: event.state === "connected" ? "info" : "warn", text: event.text };
    case "recovery.started":
      // An open that recovers takes its time, so its beginning is logged, too. Elsewhere the lines of its deaths and of its end are enough.
      return event.workers === 0 || event.by !== "open"
        ? null
        : {
            level: "info",
            text: `recovery ${event.recovery} by ${event.by} started: ${counted(event.workers, "dead worker")}`,
          };
    case "recovery.completed":
      // Another process took the jobs, or there were none: the line of the death (`worker.gone`), which is logged once, says all there is.
      return event.jobs === 0 && event.incidents.length > 0 && event.findings === undefined
        ? null
        : { level: "info", text: lineOfRecovery(event), routine: event.incidents.length === 0 };
    case "recovery.failed":
      return {
        level: "error",
        text: `recovery of worker ${event.worker} failed and will be tried again: ${event.error.message}`,
      };
    case "recovery.waits":
      return {
        level: "warn",
        text: `${counted(event.jobs, "job")} of dead worker ${event.worker} ${event.jobs === 1 ? "is" : "are"} held by another session of the store; taken as soon as it releases ${event.jobs === 1 ? "it" : "them"}`,
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
        text: `worker ${event.worker ?? "unknown"} (contact was lost) ${RESOLVED[event.resolution]}; incident ${event.incident}`,
      };
    case "worker.cleaned":
      return { level: "info", text: `cleaned up after worker ${event.worker}` };
    case "worker.disowned":
      return {
        level: "warn",
        text: `worker ${event.worker} was declared dead while it held ${counted(event.held, "job")}; it starts again under a new id`,
      };
    case "store.replaced":
      return {
        level: "error",
        text: `worker ${event.worker} stopped at once while it held ${counted(event.held, "job")}: the store is not the one that it registered with: ${event.why}`,
      };
    case "store.restored":
      return {
        level: "warn",
        text: `the store was restored from a backup: ${event.why}; earlier workers can't write any more, and their jobs are queued again`,
      };
    case "worker.blocked":
      return {
        level: "warn",
        text: `the event loop of worker ${event.worker} has been blocked for ${event.loopLagMs} ms; it keeps its jobs`,
      };
    case "lease.lost":
      return {
        level: "warn",
        text: `worker ${event.worker} was silent for ${event.lateMs} ms longer than its lease allows; ${counted(event.held, "handler was", "handlers were")} aborted`,
      };
    case "heartbeat.failed":
      return {
        level: "warn",
        text: `the heartbeat of worker ${event.worker} failed${event.failures > 1 ? ` ${event.failures} times in a row` : ""}: ${event.error.message}`,
      };
    case "write.rejected":
      return { level: "warn", text: event.text };
    case "job.failed":
      return {
        level: "warn",
        text: `attempt ${event.attempt} of job ${event.jobId} (${event.kind}) failed: ${event.error.message}${event.to === "queued" ? `; next attempt in ${event.delayMs} ms` : ""}`,
      };
    case "job.dead":
      return { level: "error", text: `job ${event.jobId} (${event.kind}) is dead: ${event.reason}` };
    case "job.overdue":
      return {
        level: "warn",
        text: `job ${event.jobId} is past its deadline${event.fencedOut ? ` and was taken from worker ${event.worker}` : ""}`,
      };
    case "job.released":
      return { level: "info", text: `job ${event.jobId} was released: ${event.reason}` };
    case "call.failed":
      return {
        level: "warn",
        text: `run.${event.call} of job ${event.jobId} (${event.kind}) failed${event.attemptEnded ? ` after the end of attempt ${event.attempt}` : ""}: ${event.error.message}`,
      };
    case "store.failed":
      return {
        level: "warn",
        text: `the store failed while ${event.doing}: ${event.error.message}${event.retryInMs > 0 ? `; retry in ${Math.round(event.retryInMs)} ms` : ""}`,
      };
    case "folder.failed":
      return {
        level: "warn",
        text: `the folder ${event.folder} could not be watched: ${event.error.message}; retry in ${Math.round(event.retryInMs)} ms`,
      };
    case "open.waits":
    case "integrity.checked":
    case "store.repaired":
    case "store.inconsistent":
      return lineOfStore(event);
    case "store.upkeep":
      return event.level === "info" ? null : { level: event.level, text: event.text };
    case "store.notice":
      return { level: "warn", text: event.text };
    case "recovery.held":
      return {
        level: "warn",
        text: `${event.why}; no worker is declared dead for the next ${Math.round(event.holdMs)} ms`,
      };
    case "listener.failed":
      return { level: "error", text: `a listener of ${event.event} threw: ${event.error.message}` };
  }
}

function lineOfRecovery(event: EngineEvent & { readonly name: "recovery.completed" }): string {
  const { recovery, by, incidents, jobs, failed, durationMs, findings } = event;
  const isChecked = findings !== undefined && findings.integrity !== "NOT_CHECKED";
  const check = isChecked ? `; integrity check ${integrityText(findings)}` : "";
  const ms = Math.round(durationMs);
  if (incidents.length === 0)
    return `${by === "open" ? "start-up recovery" : `recovery by ${by}`}: nothing to recover (${ms} ms)${check}`;
  const found = `${counted(incidents.length, "dead worker")}, ${counted(jobs, "job")}, ${failed} failed`;
  return `recovery ${recovery} by ${by}: ${found}, ${ms} ms${check}`;
}

type OfStore = "open.waits" | "integrity.checked" | "store.repaired" | "store.inconsistent";

/** What is logged about the store itself. */
function lineOfStore(event: EngineEvent & { readonly name: OfStore }): Line | null {
  switch (event.name) {
    case "open.waits":
      return {
        level: "warn",
        text: `open waits for the start-up of ${event.pid === null ? "another process" : `process ${event.pid} (${event.command})`}`,
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
        text: `rows of the store contradict each other: ${event.inconsistencies.map(({ detail }) => detail).join(" ")}`,
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
        text: `${which} was not finished within ${Math.round(event.tookMs)} ms; it continues in the background`,
      };
    case "FAILED":
      return {
        level: "error",
        text: `${which} FAILED: ${event.findings.slice(0, 3).join("; ")}${event.background ? ". Stop all workers, then: outlive check --repair" : ""}`,
      };
  }
}

// Two ways of writing the log, one line per fact: for people and for machines. Secrets are taken out here, and nothing in a text can start
// a second line. For people the places in their own code that an error came from follow its line, indented.

/** Options of the log writer. */
export interface WriterOptions {
  /** Takes one line, with its line break. Default: stderr; stdout belongs to the program. */
  readonly write?: (line: string) => void;
  /** The wall clock, in milliseconds since 1970. Default: this machine's. */
  readonly now?: () => number;
  /** Who writes, for example { worker: 2 }. Part of every JSON line; text lines show its values. Default: nothing. */
  readonly who?: Readonly<Record<string, string | number>>;
  /** Colours, for text. Default: if stderr is a terminal that has them. */
  readonly colours?: boolean;
}

type Level = keyof Logger;

/** `{"time":"...","level":"warn","message":"...", ...data}` per line. */
export function jsonWriter(options: WriterOptions = {}): Logger {
  const { write = toStderr, now = Date.now, who = {} } = options;
  const line = (level: Level, message: string, data: object = {}): void => {
    const fact = { time: new Date(now()).toISOString(), level, message: redactText(message), ...who };
    write(`${withData(fact, data) ?? JSON.stringify(fact)}\n`);
  };
  return logger(line);
}

/** `12:00:01.234 warn  [2] ...` per line. Data is in the sentence already, so it is not repeated. */
export function prettyWriter(options: WriterOptions = {}): Logger {
  const { write = toStderr, now = Date.now, who = {}, colours = process.stderr.hasColors?.() ?? false } = options;
  const speaker = Object.values(who).join(" ");
  const paint = (style: Parameters<typeof styleText>[0], text: string): string =>
    colours ? styleText(style, text, { validateStream: false }) : text;
  const line = (level: Level, message: string, data?: object): void => {
    const time = paint("dim", new Date(now()).toISOString().slice(11));
    const name = paint(level === "error" ? "red" : level === "warn" ? "yellow" : "dim", level.padEnd(5));
    write(`${time} ${name} ${speaker === "" ? "" : `[${speaker}] `}${oneLine(redactText(message))}\n`);
    const { stack } = (data as { readonly error?: { readonly stack?: unknown } })?.error ?? {};
    if (typeof stack !== "string") return;
    for (const frame of userFrames(stack)) write(`    ${paint("dim", oneLine(redactText(frame)))}\n`);
  };
  return logger(line);
}

const FRAMES = 4;

/** The frames of a stack that are the user's own code, innermost first: neither Node's, nor ours, nor a package's. */
export function userFrames(stack: string): string[] {
  const ours = ownFolder();
  return stack
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => /^at .*(?:file:\/\/|\/|[A-Z]:\\)/.test(line))
    .filter((line) => !line.includes("node:internal") && !line.includes("/node_modules/"))
    .filter((line) => ours === null || !line.includes(ours))
    .slice(0, FRAMES);
}

function logger(line: (level: Level, message: string, data?: object) => void): Logger {
  return {
    info: (message, data) => line("info", message, data),
    warn: (message, data) => line("warn", message, data),
    error: (message, data) => line("error", message, data),
  };
}

/** Undefined if the data can't be read or be JSON: the fact itself is written all the same. */
function withData(fact: object, data: object): string | undefined {
  try {
    return JSON.stringify({ ...fact, ...(redact(data) as object), ...fact });
  } catch {
    return undefined;
  }
}

/** A log whose reader died must not end the process. */
function toStderr(line: string): void {
  process.stderr.write(line, () => {});
}

// Keeps secrets out of the log: values under keys that look like secrets, and what looks like one inside a text. It is a safety net, not a
// proof: a secret under an innocent key passes.

const SECRET_KEY =
  /pass(?:word|wd|phrase)?$|passwd|password|secret|token|authorization|api[-_]?key|private[-_]?key|access[-_]?key|cookie|credential|session[-_]?id/i;
const HIDDEN = "[redacted]";
const MAX_DEPTH = 6;

/** The same data without its secrets; what it is given is not changed. */
export function redact(value: unknown, depth = 0): unknown {
  if (typeof value === "string") return redactText(value);
  if (typeof value !== "object" || value === null) return typeof value === "bigint" ? String(value) : value;
  if (depth >= MAX_DEPTH) return "[deep]";
  if (Array.isArray(value)) return value.map((item) => redact(item, depth + 1));
  if (value instanceof Date) return value;
  if (value instanceof Error) return { name: value.name, message: redactText(value.message) };
  const entries = Object.entries(value).map(([key, inner]): [string, unknown] => [
    key,
    isSecret(key) && inner !== null && inner !== undefined ? HIDDEN : redact(inner, depth + 1),
  ]);
  return Object.fromEntries(entries);
}

function isSecret(key: string): boolean {
  return SECRET_KEY.test(key);
}

/**
 * `password=...`, `"apiKey": "..."`, `Authorization: Bearer ...`, and the password inside an address. A text that was redacted before
 * stays as it is. Every pattern starts at a fixed word and nests no repetition, so the time is linear in the length of the text.
 */
export function redactText(text: string): string {
  return text
    .replaceAll(/\b(bearer\s+)[\w.~+/=-]{6,}/gi, `$1${HIDDEN}`)
    .replaceAll(/\b(authorization["']?\s*[:=]\s*["']?(?:basic|digest|negotiate)\s+)[^\s"',;]+/gi, `$1${HIDDEN}`)
    .replaceAll(
      /((?:pass(?:word|wd|phrase)?|secret|token|api[-_]?key|private[-_]?key|access[-_]?key|cookie)["']?\s*[:=]\s*)(?!\[redacted\])(?:"[^"]*"|'[^']*'|[^\s"',;&)}\]]+)/gi,
      `$1${HIDDEN}`,
    )
    .replaceAll(/(:\/\/[^\s/:@]*:)[^\s/@]+@/g, `$1${HIDDEN}@`);
}

// What is kept of the last words of a process, in the store and in reports. A process that dies of an uncaught error prints whatever
// its program put into the message, so this passes the same net as the log.

/** One line without secrets, at most `maxLength` long. Cut last: the net would not know half of an address with a password in it. */
export function evidenceText(words: string, maxLength: number): string {
  return storableText(oneLine(redactText(words)), maxLength);
}
