#!/usr/bin/env node
// A plugin in Node.js: it registers with Patchbay, or with a kubelet, and greets. See README.md; the protocol is
// docs/reference/protocol.md.
'use strict';

const path = require('node:path');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { ReflectionService } = require('@grpc/reflection');
const { Health } = require('./lib/health');
const { Log, readHandshake } = require('./lib/launched');
const { Place } = require('./lib/place');

const DRAIN = 1500; // milliseconds for calls in progress, when the plugin stops: a host that launched it gives it 2 s
const MAX_TIMES = 1000;

function load(file) {
  return loader.loadSync(path.join(__dirname, 'proto', file), { keepCase: true, defaults: true });
}

function registration(info, log) {
  return {
    GetInfo: (_, callback) => callback(null, info),
    NotifyRegistrationStatus: ({ request }, callback) => {
      if (request.plugin_registered) {
        log.info(`registered as ${info.type}/${info.name}`);
      } else {
        log.warn(`the host refused ${info.type}/${info.name}: ${request.error}`); // it asks again
      }
      callback(null, {});
    },
  };
}

const greeter = {
  Greet: ({ request }, callback) => callback(null, greeting(request.name)),
  Count: async (call) => {
    if (call.request.times > MAX_TIMES) {
      call.emit('error', { code: grpc.status.INVALID_ARGUMENT, details: `more than ${MAX_TIMES} times` });
      return;
    }
    const cancelled = new Promise((resolve) => call.once('cancelled', resolve));
    for (let i = 0; i < call.request.times && !call.cancelled; i++) {
      if (!call.write(greeting(call.request.name))) {
        await Promise.race([cancelled, new Promise((resolve) => call.once('drain', resolve))]);
      }
    }
    call.end();
  },
};

function greeting(name) {
  return { text: `Hello, ${name || 'world'}!`, pid: process.pid };
}

async function main() {
  const { values: flags } = parseArgs({
    options: {
      socket: { type: 'string' },
      type: { type: 'string', default: 'Greeter' },
      name: { type: 'string', default: 'node.example.com' },
      version: { type: 'string', default: '1.0.0' },
    },
  });
  let stop;
  const stopped = new Promise((resolve) => { stop = resolve; });
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
  const handshake = await readHandshake(stop);
  const log = new Log(handshake);
  const socket = handshake ? handshake.pluginSocket : flags.socket;
  if (!socket) {
    throw new Error('no host launched the plugin; name a path in the plugin directory with --socket');
  }

  const info = { type: flags.type, name: flags.name, endpoint: '', supported_versions: [flags.version] };
  const registrationProto = load('registration.proto');
  const greeterProto = load('greeter.proto');
  const server = new grpc.Server();
  server.addService(registrationProto['pluginregistration.Registration'], registration(info, log));
  server.addService(greeterProto['example.greeter.v1.Greeter'], greeter);
  const health = new Health(['example.greeter.v1.Greeter']);
  health.addTo(server);
  new ReflectionService({ ...registrationProto, ...greeterProto }).addToServer(server);

  const place = new Place(socket);
  await place.take((hidden) => new Promise((resolve, reject) => {
    server.bindAsync('unix:' + hidden, grpc.ServerCredentials.createInsecure(), (error) => (error ? reject(error) : resolve()));
  }));
  await stopped;

  health.stop();
  place.leave();
  await new Promise((resolve) => {
    server.tryShutdown(resolve);
    setTimeout(() => { // not waiting for it any more: a peer that reads nothing may hold it up forever
      server.forceShutdown();
      resolve();
    }, DRAIN);
  });
  await log.close();
}

main().then(() => process.exit(0), (error) => {
  console.error(`plugin: ${error.message}`);
  process.exit(1);
});
