// The real engine on a file that a process left, in this process, as if after a reboot: another boot, a clock that can be moved on
// so that nothing waits for a lease, and the maintenance in the worker's thread instead of in its own.
import { setTimeout as sleep } from "node:timers/promises";
import { contractsOf } from "../../src/engine/client.ts";
import { Engine } from "../../src/engine/engine.ts";
import { type Declared, engineSettings, settingsWithDefaults } from "../../src/engine/options.ts";
import { idSource } from "../../src/job/enqueue.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import type { Clock } from "../../src/job/time.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../src/platform/identity.ts";
import { Maintenance } from "../../src/recovery/maintenance.ts";
import type { Backend } from "../../src/stores/backend.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";

const SETTINGS = engineSettings({});
/** For a few dozen jobs that do nothing. */
const FINISH_MS = 20_000;

export interface Reopened {
  readonly engine: Engine;
  /** Recovers until no dead worker holds anything, then runs all that can be run. */
  finish(): Promise<void>;
}

/** `rebooted`: the locks of before prove nothing any more, and the lease decides. */
export async function reopen(path: string, jobs: readonly Declared[], rebooted: boolean): Promise<Reopened> {
  let ahead = 0;
  const clock: Clock = {
    ...systemClock,
    now: () => systemClock.now() + ahead,
    mono: () => systemClock.mono() + ahead,
  };
  const identity = processIdentity();
  const bootId = rebooted ? "the boot after" : identity.bootId;
  const bus = new EventBus(toStoredError);
  const deps = { clock, random: systemRandom };
  const file = await openSqlite({ ...deps, events: bus, bootId }, { path });
  const contracts = contractsOf(jobs);
  const engine = new Engine({
    backend: alone(file, clock, bus),
    settings: SETTINGS,
    contracts,
    ...deps,
    bus,
    identity: { ...identity, bootId },
    processState: checkProcess,
  });
  try {
    await file.store.declare([...contracts.values()].map((contract) => settingsWithDefaults(contract, SETTINGS)));
    await engine.operator.recoverAtOpen();
  } catch (thrown) {
    await engine.close();
    throw thrown;
  }
  return {
    engine,
    async finish() {
      for (let look = 0; (await engine.workers()).length > 0; look++) {
        if (look === 10) throw new Error("workers of before are still taken for alive after ten leases");
        await engine.operator.recover();
        ahead += SETTINGS.times.heartbeatMs;
      }
      // In a damaged file a job may be counted as ready that no index leads to: it would be waited for without an end.
      const late = new AbortController();
      const tooLate = sleep(FINISH_MS, undefined, { signal: late.signal }).then(() => {
        throw new Error(`jobs are left ${FINISH_MS / 1_000} s after the workers began`);
      });
      await Promise.race([engine.runUntilIdle({ concurrency: 50 }), tooLate]).finally(() => late.abort());
    },
  };
}

/** No other process has the file: so `runUntilIdle` may be used, and the maintenance needs no thread. */
function alone(backend: Backend, clock: Clock, events: EventBus): Backend {
  const { store, liveness } = backend;
  const newId = idSource(clock, systemRandom);
  return {
    ...backend,
    private: true,
    async startMaintenance(options, host) {
      const deps = { store, liveness, clock, random: systemRandom, events, newId, processState: checkProcess };
      const maintenance = new Maintenance(deps, options, {
        ...host,
        loopLagMs: () => 0,
        kill: () => {},
      });
      maintenance.start();
      return {
        beat: (leases?: boolean) => void maintenance.beat(leases),
        lastBeatMono: () => null,
        stop: () => maintenance.stop(),
      };
    },
  };
}
