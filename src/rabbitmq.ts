// `outlive/rabbitmq`: collections from RabbitMQ, and jobs from its messages. Needs the package `amqplib`.
export { type ConsumeOptions, type Rabbitmq, rabbitmq, type RabbitmqOptions } from "./brokers/rabbitmq/rabbitmq.ts";
export type { PublishOptions, PublishTarget, Wire } from "./stores/broker.ts";
