"""Is a merged model the base plus the adapter, and if not, which mistake made it?"""
