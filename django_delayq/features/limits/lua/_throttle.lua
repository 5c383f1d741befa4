-- Part of claim: lease no more than the limits of the queue admit.
--
-- Uses     now_us, now_ms, service, fields
-- Sets     limit, throttle

local limited = of_limits()
throttle = limited.in_force(decode_table(args.limit_text), decode_table(fields[6] or nil).set)
if throttle.most then
  -- A lease that is over counts no more: whoever takes its job up has its place.
  local over = redis.call('ZCOUNT', keys.leases, '-inf', decimal(over_by(service, now_ms)))
  throttle.room = math.max(0, throttle.most - redis.call('ZCARD', keys.leases) + over)
  limit = math.min(limit, throttle.room)
end
if throttle.interval then
  throttle.pace = limited.arrival(redis.call('HGET', keys.control, 'pace'), throttle, now_us)
  limit = math.min(limit, math.max(0, math.floor((now_us + throttle.slack - throttle.pace) / throttle.interval) + 1))
end
