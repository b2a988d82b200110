// What the maintenance thread opens on Redis: one connection, which keeps the worker's subscription, listens for wake-ups, and does its work.
import { serverClock, systemClock, systemRandom as random } from "../../platform/clock.ts";
import { maintainInThread } from "../../recovery/maintenance-thread.ts";
import type { RedisAddress } from "./address.ts";
import { Connection } from "./connection.ts";
import { wrapError } from "./errors.ts";
import { channelOf, SubscriptionLiveness } from "./liveness.ts";
import { redisStore } from "./store.ts";
import { messageOf, wakeupChannel, WakeupChannel } from "./wakeup.ts";

/** How to reach the server, and which store on it to use. */
export interface RedisMaintenance {
  readonly address: RedisAddress;
}

maintainInThread<RedisMaintenance>(async ({ address }, { options, events, times, wakeup: wake }) => {
  const clock = serverClock(systemClock, times);
  const connection = new Connection({
    address,
    random,
    clock,
    onServerNow: (now, sentAtMono) => clock.set(now, sentAtMono),
    onConnected: (connected) => times.setInContact(connected),
  });
  await connection.subscribe(channelOf(connection.tag, options.worker), () => wake("wake"));
  const store = redisStore({ connection, clock, wakeups: new WakeupChannel(connection, clock) });
  // Jobs that the maintenance itself requeues wake its own worker without a round trip through the server.
  store.onWakeup(() => wake("wake"));
  const liveness = new SubscriptionLiveness({
    connection,
    clock,
    random,
    contactMs: options.times.contactMs,
    ownWorker: options.worker,
    onHold: (why, holdMs) => events.emit("recovery.held", { why, holdMs }),
  });
  let hear: (news: "wake" | "fleet") => void = () => {};
  const woken = (): void => {
    wake("wake");
    hear("wake");
  };
  await connection.subscribe(wakeupChannel(connection.tag), (text) => {
    const message = messageOf(text);
    if (message.is === "proof") {
      liveness.heardProof(message.forMs);
      wake("proof");
    } else if (message.is === "wake") {
      liveness.heardWrite();
      woken();
    } else {
      hear("fleet");
      if (message.is === "left") liveness.fleetChanged();
    }
  });
  // What was sent while the connection was down is lost, and the main thread may be waiting for the store to be back.
  connection.onReturn(() => {
    woken();
    hear("fleet");
    liveness.fleetChanged();
  });
  return {
    store,
    liveness,
    clock,
    close: () => store.close(),
    onNews: (listener) => void (hear = listener),
    onReturn: (listener) => void connection.onReturn(listener),
  };
}, wrapError);
