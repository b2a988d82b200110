// Holds the options: their defaults, their limits, and that what can't work is refused by name before anything is opened.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import {
  type EngineOptions,
  engineSettings,
  job,
  kindChoice,
  type KindOptions,
  settingsWithDefaults,
  type WorkOptions,
  workSettings,
} from "../../src/engine/options.ts";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";

/** The options are refused, and the message names the option. */
function refused(read: () => unknown, named: string): void {
  assert.throws(
    read,
    (thrown: unknown) => {
      assert.ok(thrown instanceof OutliveError, String(thrown));
      assert.equal(thrown.code, ErrorCode.optionInvalid);
      assert.ok(thrown.message.includes(named), `${thrown.message} does not name ${named}`);
      return true;
    },
    `${named} was not refused`,
  );
}

const engine = (options: unknown) => () => engineSettings(options as EngineOptions);
const kind = (options: unknown) => () => kindChoice("mail", options as KindOptions);
const work = (options: unknown) => () => workSettings(options as WorkOptions, ["mail", "report"]);

test("FR-015 FR-033 FR-038 FR-041 the defaults of open are those of the first queue: 30 s, three intervals, 60 s, three crashes, retry", () => {
  assert.deepEqual(engineSettings({}), {
    times: { heartbeatMs: 30_000, leaseMs: 90_000, sweepMs: 60_000, probeMs: 250, contactMs: 3_000 },
    retention: { finishedMs: 604_800_000, incidentsMs: 7_776_000_000 },
    pollMs: 1_000,
    onCrash: "retry",
    maxCrashes: 3,
    startUp: { integrityCheck: true, repair: "reindex" },
    readOnly: false,
  });
});

test("the defaults of a kind", () => {
  const { settings, backoff, open } = kindChoice("mail", {});
  assert.deepEqual(settings, {
    name: "mail",
    timeoutMs: 900_000,
    maxRuntimeMs: null,
    graceMs: 5_000,
    limits: { errors: 10, timeouts: 10, crashes: 3 },
    backoff: { type: "exponential", baseMs: 1_000, maxMs: 3_600_000, jitter: 0.5 },
    onCrash: "retry",
  });
  assert.equal(backoff, null);
  assert.deepEqual(open, { onCrash: true, crashes: true });
});

test("the defaults of work", () => {
  assert.deepEqual(workSettings({}, ["mail"]), { concurrency: { total: 10, perKind: new Map() }, graceMs: 25_000 });
});

test("FR-032 FR-037 FR-040 UT-004 what is set replaces the default, and the lease follows the interval", () => {
  const { times } = engineSettings({ heartbeat: { interval: "2s", sweep: "5s", probe: "50ms" } });
  assert.deepEqual(times, { heartbeatMs: 2_000, leaseMs: 6_000, sweepMs: 5_000, probeMs: 50, contactMs: 3_000 });
  assert.equal(engineSettings({ heartbeat: { interval: "2s", lease: "4s" } }).times.leaseMs, 4_000);
  const settings = engineSettings({
    recovery: { onCrash: "requeue", crashes: 7, integrityCheckOnStartup: false, repair: "auto" },
    retention: { finished: "1h", incidents: "2h" },
    poll: "10ms",
  });
  assert.equal(settings.onCrash, "requeue");
  assert.equal(settings.maxCrashes, 7);
  assert.deepEqual(settings.startUp, { integrityCheck: false, repair: "auto" });
  assert.deepEqual(settings.retention, { finishedMs: 3_600_000, incidentsMs: 7_200_000 });
  assert.equal(settings.pollMs, 10);
});

test("impossible pairs of open are refused, and the nearest possible ones are not", () => {
  refused(engine({ heartbeat: { interval: "10s", lease: "19999ms" } }), "heartbeat.lease");
  engine({ heartbeat: { interval: "10s", lease: "20s" } })();
  refused(engine({ heartbeat: { lease: "59s" } }), "heartbeat.lease");
  refused(engine({ heartbeat: { interval: "1m", lease: "90s" } }), "heartbeat.lease");
  refused(engine({ heartbeat: { interval: "1s", probe: "3001ms" } }), "heartbeat.probe");
  engine({ heartbeat: { interval: "1s", probe: "3s" } })();
  refused(engine({ heartbeat: { interval: "80ms" } }), "heartbeat.probe");
  engine({ heartbeat: { interval: "80ms", probe: "240ms" } })();
});

test("impossible pairs of a kind are refused, and the nearest possible ones are not", () => {
  refused(kind({ timeout: "1m", maxRuntime: "59s" }), "maxRuntime of mail");
  kind({ timeout: "1m", maxRuntime: "1m" })();
  refused(kind({ maxRuntime: "14m" }), "maxRuntime of mail");
  refused(kind({ retry: { backoff: { base: "2s", max: "1s" } } }), "backoff.max of mail");
  kind({ retry: { backoff: { base: "2s", max: "2s" } } })();
  refused(kind({ retry: { backoff: { base: "2h" } } }), "backoff.max of mail");
  refused(kind({ retry: { backoff: { max: "999ms" } } }), "backoff.max of mail");
});

test("a cap on the runtime of a kind that never times out is refused: it would cap nothing", () => {
  refused(kind({ timeout: "none", maxRuntime: "1h" }), "maxRuntime of mail");
});

test("having no timeout must be stated", () => {
  assert.equal(kindChoice("mail", { timeout: "none" }).settings.timeoutMs, null);
  assert.notEqual(kindChoice("mail", {}).settings.timeoutMs, null);
});

test("shortest times", () => {
  refused(engine({ heartbeat: { interval: "49ms", lease: "1s" } }), "heartbeat.interval");
  engine({ heartbeat: { interval: "50ms", lease: "1s" } })();
  refused(engine({ heartbeat: { probe: "9ms" } }), "heartbeat.probe");
  engine({ heartbeat: { probe: "10ms" } })();
  refused(engine({ heartbeat: { sweep: "99ms" } }), "heartbeat.sweep");
  engine({ heartbeat: { sweep: "100ms" } })();
  refused(engine({ poll: "9ms" }), "poll");
  engine({ poll: "10ms" })();
  refused(kind({ timeout: "9ms" }), "job mail are not usable: timeout");
  kind({ timeout: "10ms" })();
});

test("what becomes a timer is not longer than a timer can be", () => {
  refused(engine({ heartbeat: { interval: "25d", lease: "90d" } }), "heartbeat.interval");
  refused(engine({ heartbeat: { probe: "25d", lease: "90d" } }), "heartbeat.probe");
  refused(engine({ heartbeat: { sweep: "25d" } }), "heartbeat.sweep");
  refused(engine({ poll: "25d" }), "poll");
  refused(work({ grace: "25d" }), "grace");
  engine({ heartbeat: { interval: "24d", lease: "90d", sweep: "24d" }, poll: "24d" })();
});

test("counts are whole numbers from 1 to 1000", () => {
  for (const count of [0, -1, 1.5, 1_001, "3", Number.NaN, Number.POSITIVE_INFINITY, null]) {
    refused(kind({ retry: { attempts: count } }), "retry.attempts");
    refused(kind({ retry: { timeouts: count } }), "retry.timeouts");
    refused(kind({ retry: { crashes: count } }), "retry.crashes");
    refused(engine({ recovery: { crashes: count } }), "recovery.crashes");
  }
  for (const count of [1, 1_000]) {
    kind({ retry: { attempts: count, timeouts: count, crashes: count } })();
    engine({ recovery: { crashes: count } })();
  }
});

test("jitter is a share from 0 to 1", () => {
  for (const jitter of [-0.1, 1.1, "0.5", Number.NaN]) refused(kind({ retry: { backoff: { jitter } } }), "backoff");
  for (const jitter of [0, 1]) kind({ retry: { backoff: { jitter } } })();
});

test("concurrency is a whole number from 1 to 10,000, or one per kind", () => {
  for (const concurrency of [0, -1, 1.5, 10_001, "5", { mail: 0 }, { mail: 10_001 }, { mail: "5" }]) {
    refused(work({ concurrency }), "concurrency");
  }
  assert.equal(workSettings({ concurrency: 10_000 }, ["mail"]).concurrency.total, 10_000);
});

test("a number per kind: kinds without one share ten, and a kind that is not run is refused by name", () => {
  const kinds = ["mail", "report"];
  assert.deepEqual(workSettings({ concurrency: { mail: 2 } }, kinds).concurrency, {
    total: 12,
    perKind: new Map([["mail", 2]]),
    others: 10,
  });
  assert.equal(workSettings({ concurrency: { mail: 2, report: 3 } }, kinds).concurrency.total, 5);
  assert.throws(work({ concurrency: { mial: 2 } }), {
    code: ErrorCode.optionInvalid,
    message: /^concurrency\.mial names a kind that this worker does not run\. Did you mean mail\?/,
  });
  assert.throws(() => workSettings({ concurrency: { invoice: 2 } }, kinds), {
    code: ErrorCode.optionInvalid,
    message: /^concurrency\.invoice names a kind that this worker does not run\. It runs mail, report\./,
  });
});

test("requests have room of their own, and a process that has only those has no other", () => {
  const kinds = ["hook", "hook.response"];
  const of = (concurrency: WorkOptions["concurrency"], own?: readonly string[]) =>
    workSettings(concurrency === undefined ? {} : { concurrency }, kinds, ["hook"], own).concurrency;
  const gathered = new Set(["hook"]);
  const perKind = new Map([["hook", 256]]);
  assert.deepEqual(of(undefined), { total: 266, perKind, others: 10, gathered });
  assert.deepEqual(of(5, ["hook"]), { total: 256, perKind, others: 0, gathered });
  assert.deepEqual(of(5, ["hook.response"]), { total: 5, perKind: new Map() });
  const named = { hook: 50, "hook.response": 3 };
  assert.deepEqual(of(named, ["hook"]), { total: 50, perKind: new Map([["hook", 50]]), others: 0, gathered });
  assert.deepEqual(of(named, ["hook.response"]), {
    total: 3,
    perKind: new Map([["hook.response", 3]]),
    others: 0,
  });
});

test("unknown keys are named, at every level", () => {
  refused(engine({ hartbeat: {} }), "hartbeat");
  refused(engine({ heartbeat: { intervall: "1s" } }), "intervall");
  refused(engine({ recovery: { onCrahs: "retry" } }), "onCrahs");
  refused(engine({ retention: { finnished: "1d" } }), "finnished");
  refused(engine({ sqlite: { allowUnsave: true } }), "allowUnsave");
  refused(kind({ timout: "1s" }), "timout");
  refused(kind({ retry: { errors: 3 } }), "errors");
  refused(kind({ retry: { backoff: { factor: 2 } } }), "factor");
  refused(work({ concurency: 3 }), "concurency");
});

test("wrong durations are refused and the option is named, wherever one is taken", () => {
  for (const wrong of ["5", "5 s", "-5s", "1e3s", "5w", "", 5_000, null]) {
    for (const name of ["interval", "lease", "sweep", "probe"]) refused(engine({ heartbeat: { [name]: wrong } }), name);
    for (const name of ["finished", "incidents"]) refused(engine({ retention: { [name]: wrong } }), name);
    refused(engine({ poll: wrong }), "poll");
    for (const name of ["timeout", "maxRuntime", "grace"]) refused(kind({ [name]: wrong }), name);
    refused(work({ grace: wrong }), "grace");
  }
  refused(kind({ timeout: "4000d" }), "job mail are not usable: timeout");
  refused(engine({ retention: { finished: "4000d" } }), "retention.finished");
});

test("a wrong number inside a backoff is named by its own path", () => {
  refused(kind({ retry: { backoff: { base: "5 s" } } }), "backoff.base");
  refused(kind({ retry: { backoff: { jitter: 2 } } }), "backoff.jitter");
});

test("words that are not on the list are refused", () => {
  refused(engine({ recovery: { onCrash: "restart" } }), "recovery.onCrash");
  refused(engine({ durability: "none" }), "durability");
  refused(kind({ onCrash: "restart" }), "onCrash");
  refused(kind({ timeout: "never" }), "timeout");
  refused(kind({ retry: { backoff: "fibonacci" } }), "backoff");
  for (const onCrash of ["retry", "requeue", "fail"]) engine({ recovery: { onCrash } })();
  for (const durability of ["full", "relaxed"]) engine({ durability })();
  refused(engine({ recovery: { repair: "always" } }), "recovery.repair");
  for (const repair of ["reindex", "auto", "off"]) engine({ recovery: { repair } })();
  refused(engine({ recovery: { integrityCheckOnStartup: "no" } }), "recovery.integrityCheckOnStartup");
  refused(engine({ readOnly: 1 }), "readOnly");
});

test("a logger has info, warn and error, or is false; onEvent is a function", () => {
  engine({ logger: false })();
  engine({ logger: console })();
  refused(engine({ logger: { info: () => {} } }), "logger");
  refused(engine({ logger: true }), "logger");
  refused(engine({ onEvent: "print" }), "onEvent");
});

test("options that are not an object are refused", () => {
  for (const options of [null, 5, "x", []]) {
    refused(engine(options), "options of open");
    refused(kind(options), "options of job mail");
    refused(work(options), "options of work");
  }
});

test("several mistakes are reported together, at most five", () => {
  const many = { heartbeat: { interval: 1, lease: 2, sweep: 3, probe: 4 }, poll: 5, durability: 6 };
  assert.throws(engine(many), (thrown: unknown) => {
    const issues = (thrown as OutliveError).data["issues"] as string[];
    assert.equal(issues.length, 5);
    return true;
  });
});

test("a kind's name is checked", () => {
  assert.throws(
    () => kindChoice("no name", {}),
    (thrown: unknown) => thrown instanceof OutliveError && thrown.code === ErrorCode.keyInvalid,
  );
});

test("each form of backoff is understood", () => {
  const of = (backoff: NonNullable<KindOptions["retry"]>["backoff"]) =>
    kindChoice("mail", { retry: { backoff: backoff! } });
  assert.equal(of("linear").settings.backoff.type, "linear");
  assert.deepEqual(of({ base: "2s", max: "10s", jitter: 0 }).settings.backoff, {
    type: "exponential",
    baseMs: 2_000,
    maxMs: 10_000,
    jitter: 0,
  });
  const own = of((failures, error) => (error.name === "Slow" ? "1m" : `${failures}s`));
  assert.equal(own.backoff!(3, { name: "Error", message: "" }), 3_000);
  assert.equal(own.backoff!(3, { name: "Slow", message: "" }), 60_000);
  assert.equal(own.settings.backoff.type, "exponential");
});

test("what a backoff function returns is held to the same rules", () => {
  const { backoff } = kindChoice("mail", { retry: { backoff: (() => 5) as never } });
  refused(() => backoff!(1, { name: "Error", message: "" }), "what the backoff of mail returned");
});

test("a kind that says nothing about crashes follows the engine, one that does keeps its own", () => {
  const defaults = { onCrash: "fail", maxCrashes: 9 } as const;
  const silent = settingsWithDefaults(job("silent") as never, defaults);
  assert.equal(silent.onCrash, "fail");
  assert.equal(silent.limits.crashes, 9);
  const own = settingsWithDefaults(job("own", { onCrash: "retry", retry: { crashes: 3 } }) as never, defaults);
  assert.equal(own.onCrash, "retry");
  assert.equal(own.limits.crashes, 3);
});

test("a second handler for one kind is refused, and the first one stays", () => {
  const first = (): void => {};
  const mail = job("mail").handle(first);
  refused(() => mail.handle(() => {}), "The job mail has a handler already. Call handle() once");
  assert.equal(mail.handler, first);
});

test("the input of a kind is a Standard Schema", () => {
  job("ok", { input: z.object({ n: z.number() }) });
  refused(() => job("bad", { input: { parse: () => 1 } as never }), "input of job bad");
  refused(() => job("bad", { input: null as never }), "input of job bad");
});
