// An engine from whose every end of a job another one follows (`Change.follow`). Nothing in the public API asks for that yet, so the store is
// wrapped: everything else is wired as `open` wires it.
import { contractsOf } from "../../src/engine/client.ts";
import { Engine } from "../../src/engine/engine.ts";
import { type EngineOptions, engineSettings, settingsWithDefaults } from "../../src/engine/options.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import type { Change } from "../../src/job/transitions.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../src/platform/identity.ts";
import { withVerbs } from "../../src/stores/observed.ts";
import type { Settlement, Store } from "../../src/stores/port.ts";
import { openBackend, storeAt } from "../../src/stores/registry.ts";
import { compute } from "./jobs.ts";

/** The id of what follows when an attempt of this job ends. What follows has no follower of its own. */
export function followerOf(id: string): string {
  return `${id}/next`;
}

export async function openFollowing(url: string, options: EngineOptions): Promise<Engine> {
  const settings = engineSettings(options, storeAt(url).name);
  const contracts = contractsOf(options.jobs ?? []);
  const bus = new EventBus(toStoredError);
  if (options.onEvent) bus.onAny(options.onEvent);
  const identity = processIdentity();
  const deps = { clock: systemClock, random: systemRandom };
  const { contactMs } = settings.times;
  const backend = await openBackend(
    url,
    options,
    { ...deps, events: bus, bootId: identity.bootId, contactMs },
    { migrate: true, startUp: settings.startUp, readOnly: false },
  );
  const store = following(backend.store);
  const wiring = { backend: { ...backend, store }, settings, contracts, ...deps, bus, identity };
  const engine = new Engine({ ...wiring, processState: checkProcess });
  await store.declare([...contracts.values()].map((contract) => settingsWithDefaults(contract, settings)));
  await engine.operator.recoverAtOpen();
  return engine;
}

function following(store: Store): Store {
  return withVerbs(store, {
    turn: (worker, settlements, room) => store.turn(worker, settlements.map(settled), room),
    takeBack: (request) =>
      store.takeBack({
        ...request,
        verdicts: request.verdicts.map((one) => ({ ...one, change: one.change && followed(one.change, one.job.id) })),
      }),
    transactions: {
      commit: (settlement, body, encode, control) =>
        store.transactions!.commit(settled(settlement), body, encode, control),
    },
  });
}

function settled(settlement: Settlement): Settlement {
  const { lease, change } = settlement;
  return lease.kind === compute.name ? settlement : { ...settlement, change: followed(change, lease.jobId) };
}

function followed(change: Change, id: string): Change {
  const draft = { kind: compute.name, input: '{"ms":0}', priority: 0, runAt: null, delayMs: 0, dedupeKey: null };
  return { ...change, follow: [{ id: followerOf(id), ...draft }] };
}
